"""The commands of a user who has an account of Qualcomm AI Hub, against a local server."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.devices.bare_python import bare_python
from tests.hosted.local_hub import PYTHON, LocalHub, client_packages, local_hub

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program import Program


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    with local_hub(tmp_path / "hub") as hub:
        yield hub


def account(hub: LocalHub, python: str = PYTHON) -> list[str]:
    return [f"device.python={python}", f"+device.environment.QAIHUB_CLIENT_INI={hub.configure()}"]


def shown(program: Program, hub: LocalHub, *overrides: str, python: str = PYTHON) -> dict[str, Any]:
    """Return the line of `qnnsweep devices` about the hosted device, which is asked for by name."""
    ran = program.run("devices", "--json", "device=aihub", *account(hub, python), *overrides)
    (row,) = json.loads(ran.stdout.splitlines()[-1])["devices"]
    assert ran.returncode == (4 if row["problem"] else 0)
    return row


def test_devices_says_whether_the_account_has_the_device(served_program: Program, hub: LocalHub) -> None:
    (client,) = metadata.distributions(name="qai-hub", path=[str(client_packages())])
    row = shown(served_program, hub)
    assert (row["reachable"], row["problem"], row["os_build"]) == (True, None, "14")
    assert row["runner"] == f"python {platform.python_version()}, qai-hub {client.version}"
    problem = shown(served_program, hub, "device.aihub.device=Galaxy")["problem"]
    assert problem == "AI Hub has no device Galaxy: correct device.aihub.device"
    python = bare_python(hub.folder / "python", "numpy")
    problem = shown(served_program, hub, python=python)["problem"]
    assert problem == f"{python} lacks packages: run `{python} -m pip install qai-hub flatbuffers`"
    problem = shown(served_program, hub, python="/no/python")["problem"]
    assert problem.startswith("/no/python does not ask AI Hub: cannot start '/no/python' here: ")
    assert hub.asked == {}, "nothing was sent"


def test_devices_asks_no_hosted_device_that_is_not_named(served_program: Program) -> None:
    ran = served_program.run("devices", "--json")
    assert [row["device"] for row in json.loads(ran.stdout.splitlines()[-1])["devices"]] == ["local"]


@pytest.mark.slow
@pytest.mark.toolchain
def test_a_run_on_a_hosted_device_has_the_tables_of_the_simulator(
    served_program: Program, hub: LocalHub, tmp_path: Path
) -> None:
    cell = ["run", "model=digits_cnn", "scheme=8a8w", "soc=SM8650", "measure.cures=0", f"artifacts={tmp_path / 'art'}"]
    assert served_program.run(*cell).returncode == 0
    assert served_program.run(*cell, "device=aihub", *account(hub)).returncode == 0
    tables = {
        name: pd.read_parquet(tmp_path / "art" / "tables" / name)
        for name in ("operators", "cells", "commands", "profile")
    }
    here, there = (tables["operators"].query("device == @name") for name in ("local", "aihub"))
    named = ["run_id", "device", "run"]
    pd.testing.assert_frame_equal(
        here.drop(columns=named).reset_index(drop=True), there.drop(columns=named).reset_index(drop=True)
    )
    assert set(tables["profile"]["device"]) == {"local"}, (
        "the clock of this machine says nothing about the hosted device"
    )
    cells = tables["cells"].set_index("device")
    assert cells["timed_on"].to_dict() == {"local": "simulator", "aihub": "device"}
    assert cells["latency_p50_ms"].to_dict()["aihub"] == 1.25
    jobs = tables["commands"].query("device == 'aihub'")["jobs"]
    assert [list(urls) for urls in jobs] == [[f"{hub.url}/jobs/j1/"], [f"{hub.url}/jobs/j2/"]]


@pytest.mark.slow
@pytest.mark.toolchain
@pytest.mark.parametrize(
    ("damage", "differ"), [("code", ["add", "linear"]), pytest.param("", [], marks=pytest.mark.night)]
)
def test_a_hosted_device_is_proved_by_a_few_operators(
    served_program: Program, hub: LocalHub, tmp_path: Path, damage: str, differ: list[str]
) -> None:
    hub.damage = damage
    few = ["model.arguments.operators=[add,linear]", f"artifacts={tmp_path / 'art'}"]
    ran = served_program.run("devices", "--prove", "aihub", "--json", *few, *account(hub))
    assert ran.returncode == (1 if damage else 0), ran.stderr
    (cell,) = json.loads(ran.stdout.splitlines()[-1])["cells"]
    assert (cell["soc"], cell["scheme"]) == ("SM8650", "8a8w")
    assert sorted({name.partition("_")[0] for name in cell["differing"]}) == differ
    assert 0 < cell["compared"] <= hub.asked["job"]
    assert hub.asked["job"] > 0
