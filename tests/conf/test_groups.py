"""The options that ship, each with its name, and the values of the shipped tolerances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.names import AXES
from qnnsweep.conf.options import GROUPS, SHIPPED
from qnnsweep.conf.tolerances import ToleranceConfig

GOLDEN = Path(__file__).parents[1] / "goldens" / "groups.json"


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (SHIPPED / group).glob("*.yaml"))


def test_every_option_of_every_group_is_in_the_golden() -> None:
    assert {group: options(group) for group in GROUPS} == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("axis", AXES)
def test_every_option_composes_and_has_the_name_of_its_file(axis: str) -> None:
    plan = load([f"{axis}=glob(*)"])
    assert sorted(cell.request.names[AXES.index(axis)] for cell in plan.cells) == options(axis)


@pytest.mark.parametrize("tolerance", options("tolerance"))
def test_a_tolerance_names_schemes_that_ship(tolerance: str) -> None:
    config = load([f"tolerance={tolerance}"]).cells[0].request.tolerance
    assert config.name == tolerance
    assert {*config.final_snr_db, *config.top1_agreement} <= {*options("scheme")}
    assert {key.partition("/")[0] for key in config.operators} <= {*options("scheme"), "*"}


def test_the_tolerance_none_has_no_threshold() -> None:
    config = load(["tolerance=none"]).cells[0].request.tolerance
    assert config == ToleranceConfig(name="none")
