"""Reading a `.pte` without ExecuTorch: the same as ExecuTorch reads, and a refusal for every damaged one."""

from __future__ import annotations

import contextlib
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conf.load import load
from tasks.errors import EvidenceError
from tasks.lower import lower
from tasks.program_facts import ProgramTensor
from tasks.quantize import quantize
from tasks.records import LoweredProgram
from tasks.toolchain import program, qnn_options
from tasks.toolchain.program import read_program
from tasks.toolchain.qnn_options import COMPILE_SPEC, QnnOptions, read_options

import official  # isort: skip

if TYPE_CHECKING:
    from flows.cells import Means

pytestmark = pytest.mark.toolchain
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DAMAGES = st.lists(st.tuples(st.integers(0, 1599), st.integers(0, 255)), max_size=8)
CUT = st.none() | st.integers(0, 1600)


def schema_text(name: str) -> str:
    path = distribution("executorch").locate_file(f"executorch/{name}")
    return re.sub(r"//.*|\(force_align: \d+\)", "", Path(str(path)).read_text())


def tables(text: str) -> dict[str, tuple[str, ...]]:
    """A schema's tables; a field of a union's type is stored as two, its type first."""
    unions = set(re.findall(r"union (\w+)", text))
    found: dict[str, tuple[str, ...]] = {}
    for name, body in re.findall(r"table (\w+) \{(.*?)\}", text, re.DOTALL):
        fields: list[str] = []
        for field, kind in re.findall(r"(\w+)\s*:\s*\[?(\w+)", body):
            fields += [f"{field}_type", field] if kind in unions else [field]
        found[name] = tuple(fields)
    return found


def test_the_field_order_is_that_of_the_installed_schemas() -> None:
    for module, name in (
        (program, "exir/_serialize/program.fbs"),
        (qnn_options, "backends/qualcomm/serialization/qc_compiler_spec.fbs"),
    ):
        installed = tables(schema_text(name))
        assert {table: installed[table] for table in module.SCHEMA} == dict(module.SCHEMA)


def test_the_names_of_socs_are_those_of_the_installed_schema() -> None:
    text = schema_text("backends/qualcomm/serialization/qc_compiler_spec.fbs")
    (body,) = re.findall(r"enum QcomChipset: int \{(.*?)\}", text, re.DOTALL)
    assert {int(model): name for name, model in re.findall(r"(\w+) = (\d+)", body)} == qnn_options.SOC_MODELS
    assert qnn_options.soc_name(1000) == "SoC model 1000"


@pytest.fixture(scope="module")
def pte(lowered: LoweredProgram, means: Means) -> bytes:
    return means.store.read(lowered.program)


@pytest.fixture(scope="module")
def xnnpack(lowered: LoweredProgram, means: Means) -> bytes:
    """A program of XNNPACK."""
    (cell,) = load(["model=digits_cnn", "scheme=fp32", "backend=xnnpack"]).cells
    ask, tools = cell.request, {"store": means.store, "children": means.children}
    quantized = quantize(lowered.quantized.exported, ask.scheme, ask.backend.kind, **tools)
    made = lower(quantized, ask.scheme, ask.backend.kind, None, 1, dump_operators=False, **tools)
    return means.store.read(made.program)


@pytest.fixture(scope="module")
def segmented(pte: bytes, means: Means) -> bytes:
    """The delegate's bytes lie behind the flatbuffer."""
    return means.children.call("lower", official.with_delegates_in_segments, pte).value


@pytest.mark.parametrize("source", ["pte", "xnnpack", "segmented"])
def test_executorchs_own_reader_sees_the_same(source: str, request: pytest.FixtureRequest, means: Means) -> None:
    data: bytes = request.getfixturevalue(source)
    theirs: dict[str, Any] = means.children.call("lower", official.read_program, data).value
    ours = read_program(data)
    assert theirs == {
        "inputs": [(each.shape, each.dim_order) for each in ours.inputs],
        "outputs": [(each.shape, each.dim_order) for each in ours.outputs],
        "delegates": [(each.backend, each.compile_specs, each.processed, each.calls) for each in ours.delegates],
        "kernel_calls": ours.kernel_calls,
    }
    assert ours.inputs == (ProgramTensor(shape=(1, 1, 8, 8), dtype="float32", dim_order=(0, 1, 2, 3)),)


def test_the_options_of_a_delegate_are_read_as_executorch_reads_them(pte: bytes, means: Means) -> None:
    (delegate,) = read_program(pte).delegates
    spec = delegate.compile_specs[COMPILE_SPEC]
    expected = QnnOptions(soc="SM8650", arch=75, vtcm_mib=8, precision="quantized", dumps=False)
    assert read_options(spec) == expected
    assert means.children.call("lower", official.read_options, spec).value == expected


def damaged(data: bytes, damages: list[tuple[int, int]], cut: int | None) -> bytes:
    copy = bytearray(data)
    for position, value in damages:
        copy[position % len(copy)] = value
    return bytes(copy[:cut])


@QUICK
@given(damages=DAMAGES, cut=CUT)
@example(damages=[], cut=0)
@example(damages=[(16, 255), (20, 255)], cut=None)
def test_a_damaged_program_is_read_or_refused_and_nothing_else(
    pte: bytes, damages: list[tuple[int, int]], cut: int | None
) -> None:
    with contextlib.suppress(EvidenceError):
        read_program(damaged(pte, damages, cut))


@QUICK
@given(damages=DAMAGES, cut=CUT)
def test_damaged_options_are_read_or_refused_and_nothing_else(
    pte: bytes, damages: list[tuple[int, int]], cut: int | None
) -> None:
    (delegate,) = read_program(pte).delegates
    with contextlib.suppress(EvidenceError):
        read_options(damaged(delegate.compile_specs[COMPILE_SPEC], damages, cut))


def test_a_file_of_another_type_and_a_cut_one_say_so(pte: bytes, segmented: bytes) -> None:
    with pytest.raises(
        EvidenceError, match=r"not a readable ExecuTorch program: bytes 4 to 8 are b'ED00', not b'ET12'"
    ):
        read_program(pte[:4] + b"ED00" + pte[8:])
    with pytest.raises(EvidenceError, match=r"cut short"):
        read_program(pte[:1000])
    with pytest.raises(EvidenceError, match=r"segments\[\d+\].size: \d+ bytes at \d+ are outside the file's \d+"):
        read_program(segmented[:-1000])
