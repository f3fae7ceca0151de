"""The profile of a capture: its times joined to operators by handle, with subgraphs, fused operators and warm-ups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.tasks.comparison.profile import profiled_events
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import (
    Blob,
    CapturedMethod,
    DelegatedNode,
    Instruction,
    LaunchResult,
    Operator,
    ProfileProgram,
)
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from tests.sample_records import CAPTURED_METHOD, LOWERED_METHOD, SHIPPING

DATA = Path(__file__).parents[1] / "data"
NAMES = ("aten_convolution_default", "aten_relu_default", "aten_convolution_default_1", "aten_relu_default_1")


def operator(handle: int, name: str, module: str) -> Operator:
    return Operator(
        index=handle, name=name, target=f"aten.{handle}", debug_handle=handle, output_index=0, source_nodes=(),
        module_path=module, stack_trace=f"line {handle}", shape=(1,), dtype="float32", quantization=None,
        axis_order=None, subgraph=0, constant=False, unused=False,
    )  # fmt: skip


OPERATORS = (
    operator(9, "conv", "features.0"),
    operator(10, "relu", "features.2"),
    operator(12, "conv_1", "features.3"),
    operator(13, "relu_1", "features.5"),
)
NODES = tuple(
    DelegatedNode(subgraph=0, name=name, debug_handle=handle, users=users)
    for name, handle, users in zip(
        (*NAMES, "quantized_decomposed_dequantize_per_tensor_default"),
        (9, 10, 12, 13, None),
        (NAMES[1:2], NAMES[2:3], NAMES[3:4], ("elsewhere",), ("output",)),
        strict=True,
    )
)
KNOWN = replace(
    LOWERED_METHOD,
    operators=OPERATORS,
    instructions=(Instruction(id=0, debug_handles=(9, 10, 12, 13), backend="QnnBackend", subgraph=0),),
    profile=ProfileProgram(program=Blob(sha256="a" * 64, size=1), unavailable=None, nodes=NODES, schematics=()),
)
QNN = backend_of("qnn")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def captured(
    store: Store, *, iterations: int = 2, warm_up: int = 0, outputs: Blob = CAPTURED_METHOD.outputs
) -> CapturedMethod:
    """Return the capture of a shipping and a profile program, each of which ran two samples twice."""
    log = store.put_bytes((DATA / "digits_qnn_profile.etdump").read_bytes())
    launch = replace(SHIPPING.launch, samples=2, iterations=iterations, warm_up=warm_up)
    results: tuple[LaunchResult, ...] = (
        replace(SHIPPING, launch=launch),
        replace(SHIPPING, launch=replace(launch, name="profile")),
    )
    return replace(CAPTURED_METHOD, results=results, etdump=log, etdump_profile=log, outputs_profile=outputs)


def test_an_operator_inside_the_delegate_is_joined_by_its_debug_handle(store: Store) -> None:
    rows = {(row.program, row.node): row for row in profiled_events(KNOWN, captured(store), QNN, store)}
    relu = rows["profile", "aten_relu_default"]
    assert (relu.unit, relu.raw, relu.inferences, relu.samples) == (
        "cycles", (46804.0, 40567.0, 42497.0, 38288.0), (0, 1, 2, 3), (0, 0, 1, 1),
    )  # fmt: skip
    assert (relu.debug_handles, relu.operators) == ((10,), OPERATORS[1:2])
    assert (relu.instruction, relu.backend, relu.subgraph, relu.counted_in) == (0, "QnnBackend", 0, ())


def test_an_operator_without_cycles_names_the_operator_that_its_work_is_counted_in(store: Store) -> None:
    rows = profiled_events(KNOWN, captured(store), QNN, store)
    assert {row.node: row.counted_in for row in rows if row.counted_in} == {
        "aten_convolution_default": ("aten_relu_default",),
        "aten_convolution_default_1": ("aten_relu_default_1",),
        "quantized_decomposed_dequantize_per_tensor_default": ("output",),
    }


def test_a_delegate_call_has_all_operators_of_its_subgraph_and_a_total_has_none(store: Store) -> None:
    rows = {row.name: row for row in profiled_events(KNOWN, captured(store), QNN, store) if row.program == "profile"}
    assert rows["DELEGATE_CALL #0"].operators == OPERATORS
    assert rows["DELEGATE_CALL #0"].subgraph == 0
    for name in ("Input OpId_2 (cycles)", "Accelerator (execute) time (cycles) #0", "Method::execute"):
        assert (rows[name].operators, rows[name].debug_handles, rows[name].counted_in) == ((), (), ())
    assert (rows["Method::execute"].subgraph, rows["Method::execute"].backend) == (None, None)
    assert (rows["Method::init"].inferences, rows["Method::init"].samples) == ((), ())


def test_events_of_an_unknown_instruction_have_no_operators(store: Store) -> None:
    rows = profiled_events(replace(KNOWN, instructions=()), captured(store), QNN, store)
    assert {(row.operators, row.debug_handles, row.backend, row.subgraph) for row in rows} == {((), (), None, None)}
    assert len(rows) == len(profiled_events(KNOWN, captured(store), QNN, store))


def test_the_times_of_warm_ups_are_left_out(store: Store) -> None:
    rows = profiled_events(KNOWN, captured(store, iterations=1, warm_up=1), QNN, store)
    assert {(row.program, len(row.raw)) for row in rows if row.name == "Method::execute"} == {
        ("shipping", 2), ("profile", 2),
    }  # fmt: skip
    (relu,) = (row for row in rows if row.program == "profile" and row.node == "aten_relu_default")
    assert (relu.raw, relu.inferences, relu.samples) == ((40567.0, 38288.0), (0, 1), (0, 1))


def test_a_profile_program_with_other_outputs_is_marked(store: Store) -> None:
    rows = profiled_events(KNOWN, captured(store, outputs=Blob(sha256="b" * 64, size=1)), QNN, store)
    assert {(row.program, row.same_outputs) for row in rows} == {("shipping", True), ("profile", False)}


def test_without_a_profile_program_all_events_are_the_shipping_program_s(store: Store) -> None:
    alone = replace(captured(store), etdump_profile=None, outputs_profile=None)
    assert {row.program for row in profiled_events(KNOWN, alone, QNN, store)} == {"shipping"}


def test_a_log_with_another_number_of_inferences_is_refused(store: Store) -> None:
    with pytest.raises(EvidenceError) as refused:
        profiled_events(KNOWN, captured(store, iterations=3), QNN, store)
    assert str(refused.value) == (
        "the shipping program's etdump holds 4 inferences, but 6 were requested; measure again with reuse=programs"
    )
