"""The names that come from ExecuTorch and torchao are those of the installed versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from qnnsweep.conf.backends import planned_backend
from qnnsweep.conf.load import load
from qnnsweep.conf.names import OBSERVERS, QUANT_DTYPES


def source(package: str, path: str) -> Iterator[ast.stmt]:
    """Return the top-level statements of an installed module without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    yield from ast.parse((Path(next(iter(spec.submodule_search_locations))) / path).read_text()).body


def members(statements: Iterator[ast.stmt], name: str) -> list[str]:
    """Return the names that the body of the class of that name assigns."""
    (kind,) = (node for node in statements if isinstance(node, ast.ClassDef) and node.name == name)
    targets = [node.targets[0] for node in kind.body if isinstance(node, ast.Assign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def chipsets() -> dict[str, tuple[int, int]]:
    """Return the architecture and the VTCM in MiB of each chipset in ExecuTorch's table."""
    table = next(
        node.value
        for node in source("executorch", "backends/qualcomm/serialization/qc_schema.py")
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_soc_info_table"
    )
    assert isinstance(table, ast.Dict)
    sizes: dict[str, tuple[int, int]] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Attribute)
        assert isinstance(value, ast.Call)
        htp = value.args[1]
        assert isinstance(htp, ast.Call)
        arch, vtcm = map(ast.unparse, htp.args)
        sizes[key.attr] = (int(arch.removeprefix("HtpArch.V")), int(vtcm))
    return sizes


def test_the_socs_are_executorchs_chipsets() -> None:
    plan = load(["soc=glob(*)"])
    ours = {cell.request.soc.name: (cell.request.soc.arch, cell.request.soc.vtcm_mib) for cell in plan.cells}
    assert ours == chipsets()
    upstream = members(source("executorch", "backends/qualcomm/serialization/qc_schema.py"), "QcomChipset")
    assert sorted(planned_backend("qnn").socs or ()) == sorted({*upstream} - {"UNKNOWN_SM"}) == sorted(ours)


def test_the_shipped_schemes_are_executorchs_and_two_floating_point_ones() -> None:
    upstream = members(source("executorch", "backends/qualcomm/quantizer/quantizer.py"), "QuantDtype")
    assert sorted(name.removeprefix("use_") for name in upstream) == sorted(QUANT_DTYPES)
    shipped = {cell.request.scheme.name for cell in load(["scheme=glob(*)"]).cells}
    assert shipped == {*QUANT_DTYPES, "fp16", "fp32"}


def test_the_observers_are_torchaos() -> None:
    statements = source("torchao", "quantization/pt2e/observer.py")
    classes = {node.name for node in statements if isinstance(node, ast.ClassDef)}
    assert set(OBSERVERS) <= classes
