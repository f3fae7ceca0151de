"""What ships: the groups' options, and that they agree with the installed ExecuTorch."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from conf.load import load
from conf.names import AXES, CHIPSETS, OBSERVERS, QUANT_DTYPES
from conf.options import GROUPS, SHIPPED
from conf.schema import ToleranceConfig

GOLDEN = Path(__file__).parents[1] / "goldens" / "groups.json"


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (SHIPPED / group).glob("*.yaml"))


def source(package: str, path: str) -> Iterator[ast.stmt]:
    """The top-level statements of a module that is installed, without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    yield from ast.parse((Path(next(iter(spec.submodule_search_locations))) / path).read_text()).body


def members(statements: Iterator[ast.stmt], name: str) -> list[str]:
    body = next(one.body for one in statements if isinstance(one, ast.ClassDef) and one.name == name)
    return [one.targets[0].id for one in body if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]


def chipsets() -> dict[str, tuple[int, int]]:
    """ExecuTorch's own table: a chipset's architecture and its VTCM in MiB."""
    table = next(
        one.value
        for one in source("executorch", "backends/qualcomm/serialization/qc_schema.py")
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "_soc_info_table"
    )
    assert isinstance(table, ast.Dict)
    found: dict[str, tuple[int, int]] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Attribute)
        assert isinstance(value, ast.Call)
        htp = value.args[1]
        assert isinstance(htp, ast.Call)
        arch, vtcm = map(ast.unparse, htp.args)
        found[key.attr] = (int(arch.removeprefix("HtpArch.V")), int(vtcm))
    return found


def test_every_option_of_every_group_is_in_the_golden() -> None:
    assert {group: options(group) for group in GROUPS} == json.loads(GOLDEN.read_text())


def test_the_socs_are_executorchs_chipsets() -> None:
    plan = load(["soc=glob(*)"])
    ours = {cell.request.soc.name: (cell.request.soc.arch, cell.request.soc.vtcm_mib) for cell in plan.cells}
    assert ours == chipsets()
    upstream = members(source("executorch", "backends/qualcomm/serialization/qc_schema.py"), "QcomChipset")
    assert sorted(CHIPSETS) == sorted({*upstream} - {"UNKNOWN_SM"}) == sorted(ours)


def test_the_schemes_are_executorchs_and_the_two_floats() -> None:
    upstream = members(source("executorch", "backends/qualcomm/quantizer/quantizer.py"), "QuantDtype")
    assert sorted(name.removeprefix("use_") for name in upstream) == sorted(QUANT_DTYPES)
    assert options("scheme") == sorted([*QUANT_DTYPES, "fp16", "fp32"])


def test_the_observers_are_torchaos() -> None:
    classes = {one.name for one in source("torchao", "quantization/pt2e/observer.py") if isinstance(one, ast.ClassDef)}
    assert set(OBSERVERS) <= classes


@pytest.mark.parametrize("axis", AXES)
def test_every_option_composes_and_is_called_as_its_file(axis: str) -> None:
    plan = load([f"{axis}=glob(*)"])
    assert sorted(cell.names[AXES.index(axis)] for cell in plan.cells) == options(axis)


@pytest.mark.parametrize("tolerance", options("tolerance"))
def test_a_tolerance_names_schemes_that_ship(tolerance: str) -> None:
    config = load([f"tolerance={tolerance}"]).cells[0].request.tolerance
    assert config.name == tolerance
    assert {*config.final_snr_db, *config.top1_agreement} <= {*options("scheme")}
    assert {key.partition("/")[0] for key in config.operators} <= {*options("scheme"), "*"}


def test_the_tolerance_that_asks_nothing_asks_nothing() -> None:
    config = load(["tolerance=none"]).cells[0].request.tolerance
    assert config == ToleranceConfig(name="none")
