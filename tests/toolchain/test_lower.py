"""One real lowering, compared with ExecuTorch's own records of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.records import Capture, CompileFacts, ExpectedTensor, LoweredProgram, Operator, Quantization
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump
from qnnsweep.tasks.toolchain.tensors import read_tensors

import executorch_oracle  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import StartRunner

pytestmark = pytest.mark.toolchain

COMPUTED = [
    # operator, module, source node, shape in PyTorch's layout, how the device lays it out
    ("aten.convolution.default", "features.0", "input_1", (1, 16, 8, 8), (0, 2, 3, 1)),
    ("aten.relu.default", "features.2", "input_3", (1, 16, 8, 8), (0, 2, 3, 1)),
    ("aten.convolution.default", "features.3", "input_4", (1, 32, 8, 8), (0, 2, 3, 1)),
    ("aten.relu.default", "features.5", "input_6", (1, 32, 8, 8), (0, 2, 3, 1)),
    ("aten.max_pool2d_with_indices.default", "features.6", "input_7", None, (0, 2, 3, 1)),
    ("getitem", "features.6", "input_7", (1, 32, 4, 4), (0, 2, 3, 1)),
    ("aten.view_copy.default", "", "flatten", (1, 512), None),
    ("aten.linear.default", "head", "res", (1, 10), None),
]


@pytest.fixture(scope="module")
def record(resources: Resources, lowered: LoweredProgram) -> dict[str, Any]:
    """The ETRecord as ExecuTorch's own parser reads it."""
    assert lowered.methods[0].etrecord is not None
    return resources.workers.call(
        "lower", executorch_oracle.read_etrecord, lowered.methods[0].etrecord, resources.store
    ).value


@pytest.fixture(scope="module")
def operators(lowered: LoweredProgram) -> list[Operator]:
    """What the device has to compute."""
    return [row for row in lowered.methods[0].operators if not row.constant and not row.unused]


def test_every_call_of_the_edge_graph_has_one_row_in_its_order(lowered: LoweredProgram, record: dict[str, Any]) -> None:
    calls = [row for row in lowered.methods[0].operators if not row.unused]
    assert {row.name: row.shape for row in calls if row.shape is not None} == record["shapes"]
    rows = [(row.name, row.target, row.debug_handle, row.stack_trace or None) for row in calls]
    assert rows == [(name, target, handle, trace or None) for name, target, handle, trace in record["calls"]]
    assert [row.index for row in lowered.methods[0].operators] == list(range(len(lowered.methods[0].operators)))


def test_an_output_that_nothing_reads_has_a_row_after_all_calls(lowered: LoweredProgram) -> None:
    """The largest elements' places: no getitem takes them from the pool."""
    (pool,) = [row for row in lowered.methods[0].operators if row.target == "aten.max_pool2d_with_indices.default"][:1]
    assert [row for row in lowered.methods[0].operators if row.unused] == [
        dataclasses.replace(
            pool,
            index=len(lowered.methods[0].operators) - 1,
            name="aten_max_pool2d_with_indices_default[1]",
            output_index=1,
            shape=(1, 32, 4, 4),
            dtype="int64",
            quantization=None,
            axis_order=None,
            unused=True,
        )
    ]


def test_the_program_knows_the_grid_its_input_is_put_on(lowered: LoweredProgram) -> None:
    (qparams,) = lowered.methods[0].input_qparams
    assert qparams is not None
    # an image's pixels: 0 to 1
    assert qparams.scale[0] * (qparams.quant_max - qparams.zero_point[0]) == pytest.approx(1)
    assert dataclasses.replace(qparams, scale=(0.5,)) == Quantization(
        scale=(0.5,), zero_point=(0,), axis=None, quant_min=0, quant_max=255, dtype="uint8"
    )


def test_an_operator_knows_where_in_the_model_it_comes_from_and_where_it_goes(operators: list[Operator]) -> None:
    rows = [(row.target, row.module_path, *row.source_nodes, row.shape, row.axis_order) for row in operators]
    assert rows == COMPUTED
    assert {(row.subgraph, row.output_index) for row in operators} == {(0, 0)}
    assert {row.dtype for row in operators} == {"float32", None}
    for row in operators:
        assert "tasks/models/digits.py" in row.stack_trace
        assert "return self.head(self.features(image).flatten(1))" in row.stack_trace


def test_what_follows_from_parameters_alone_is_constant(lowered: LoweredProgram) -> None:
    assert {row.target for row in lowered.methods[0].operators if row.constant} == {
        "aten._to_copy.default",
        "quantized_decomposed.dequantize_per_channel.default",
    }


def test_every_computed_operator_of_a_quantized_program_has_its_grid(operators: list[Operator]) -> None:
    grids = [row.quantization for row in operators]
    for qparams in grids:
        assert qparams is not None
        assert dataclasses.replace(qparams, scale=(0.5,), zero_point=(0,)) == Quantization(
            scale=(0.5,), zero_point=(0,), axis=None, quant_min=0, quant_max=255, dtype="uint8"
        )
        (scale,), (zero_point,) = qparams.scale, qparams.zero_point
        assert (0 < scale < 1, 0 <= zero_point <= 255) == (True, True)
    relus = [row.quantization for row in operators if row.target == "aten.relu.default"]
    assert [qparams.zero_point for qparams in relus if qparams] == [(0,), (0,)]


def test_a_reference_value_lies_in_its_operators_grid(lowered: LoweredProgram, resources: Resources) -> None:
    """Scale and zero point belong to the operator they stand with: its float values are within their range."""
    blobs = lowered.methods[0].reference
    reference = {key: value for blob in blobs for key, value in read_tensors(resources.store, blob).items()}
    for row in lowered.methods[0].operators:
        qparams = row.quantization
        if qparams is None or row.shape is None:
            continue
        low, high = (
            (code - qparams.zero_point[0]) * qparams.scale[0] for code in (qparams.quant_min, qparams.quant_max)
        )
        for sample in (choice.sample for choice in lowered.methods[0].chosen):
            value = reference[tensor_key(sample, row.index)]
            assert tuple(value.shape) == row.shape
            room = 0.1 * (high - low) + qparams.scale[0]
            # Before a relu the device's grid leaves out what the relu discards.
            assert value.max() <= high + room, row.name
            if "convolution" not in row.target:
                assert value.min() >= low - room, row.name


def test_a_per_channel_grid_has_a_scale_and_a_zero_point_for_each_channel(resources: Resources) -> None:
    attributes = {"scales": [0.1, 0.2], "zero_points": [0, 3], "axis": 1, "quant_min": -127, "quant_max": 127}
    annotated = [attributes, attributes | {"zero_points": None}, None]
    qparams = Quantization(scale=(0.1, 0.2), zero_point=(0, 3), axis=1, quant_min=-127, quant_max=127, dtype="int8")
    expected = [qparams, dataclasses.replace(qparams, zero_point=(0, 0)), None]
    assert resources.workers.call("lower", executorch_oracle.noted_grids, annotated).value == expected


def test_delegation_is_counted_by_type_and_sums_to_the_graph(lowered: LoweredProgram, record: dict[str, Any]) -> None:
    counts = {count.operator: (count.delegated, count.not_delegated) for count in lowered.methods[0].delegation}
    assert counts == {
        "aten__to_copy_default": (3, 0),
        "aten_convolution_default": (2, 0),
        "aten_linear_default": (1, 0),
        "aten_max_pool2d_with_indices_default": (1, 0),
        "aten_relu_default": (2, 0),
        "aten_view_copy_default": (1, 0),
        "getitem": (1, 0),
        "quantized_decomposed_dequantize_per_channel_default": (6, 0),
    }
    assert sum(delegated for delegated, _ in counts.values()) == len(record["calls"])
    assert all(count.refusals == () for count in lowered.methods[0].delegation)
    assert lowered.methods[0].delegated_subgraphs == 1


def test_every_computed_operator_is_announced_once_with_its_own_grid_and_layout(
    lowered: LoweredProgram, operators: list[Operator]
) -> None:
    announced = {
        tensor.debug_handles[0]: tensor for tensor in lowered.methods[0].expected_tensors if tensor.debug_handles
    }
    assert len(announced) == len([tensor for tensor in lowered.methods[0].expected_tensors if tensor.debug_handles])
    for row in operators:
        name = row.name if row.target != "getitem" else "aten_max_pool2d_with_indices_default"
        assert announced.pop(row.debug_handle, None) in (
            None if row.target == "getitem" else (),
            ExpectedTensor(
                identifier=f"{name}@0",
                debug_handles=(row.debug_handle,),
                output_index=0,
                quantization=row.quantization,
                axis_order=row.axis_order,
            ),
        )
    assert announced == {}


def test_the_runtime_logs_what_was_announced_and_nothing_else(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    dump = read_etdump(resources.store.read(capture.methods[0].debug[0].etdump))
    operators = [entry for entry in dump.tensors if not entry.is_output and not entry.delegate_argument]
    announced = {
        tensor.identifier
        for tensor in lowered.methods[0].expected_tensors
        if not tensor.identifier.startswith("instruction:")
    }
    for run in sorted({entry.run for entry in operators}):
        assert {entry.delegate_identifier for entry in operators if entry.run == run} == announced
    assert len({entry.run for entry in operators}) == len(lowered.methods[0].chosen) == 2


def test_the_compiler_says_what_it_moves(lowered: LoweredProgram) -> None:
    (facts,) = lowered.methods[0].compile_facts
    # One 8 x 8 image in and ten logits out, and some ten thousand weights of a byte: nothing spills.
    assert dataclasses.replace(facts, write_total_bytes=0, read_total_bytes=0) == CompileFacts(
        subgraph=0, spill_bytes=0, fill_bytes=0, write_total_bytes=0, read_total_bytes=0
    )
    assert facts.write_total_bytes > 0
    assert facts.read_total_bytes > 10_000


def test_the_delegated_graph_can_be_read(lowered: LoweredProgram, resources: Resources) -> None:
    text = resources.store.read(lowered.methods[0].delegated_graph).decode()
    assert "backend_id: QnnBackend" in text
    assert [row.name for row in lowered.methods[0].operators if not row.unused and f"%{row.name} : " not in text] == []


def test_the_etrecord_opens_in_executorchs_own_tools(record: dict[str, Any]) -> None:
    assert {key: record[key] for key in ("graphs", "delegates", "inputs")} == {
        "graphs": [f"edge_after_transform/{METHOD}"],
        "delegates": 1,
        "inputs": [(1, 1, 8, 8)],
    }


def test_the_bundled_program_passes_executorchs_own_verification(lowered: LoweredProgram, resources: Resources) -> None:
    assert lowered.bundled_program is not None
    for case in range(len(lowered.methods[0].chosen)):
        resources.workers.call(
            "lower", executorch_oracle.verify_bundled, lowered.bundled_program, resources.store, case, 2.0
        )


def test_the_bundled_programs_expected_outputs_are_eager_pytorchs(
    lowered: LoweredProgram, resources: Resources
) -> None:
    """Quantized to eight bits, no program gives the float answers to six digits."""
    assert lowered.bundled_program is not None
    with pytest.raises(ToolchainError, match="lower failed: RuntimeError"):
        resources.workers.call(
            "lower", executorch_oracle.verify_bundled, lowered.bundled_program, resources.store, 0, 1e-6
        )


def test_a_debug_buffer_of_the_announced_size_holds_it_and_one_too_small_aborts(
    lowered: LoweredProgram,
    capture: Capture,
    resources: Resources,
    start_runner: StartRunner,
    images: list[tuple[bytes]],
    tmp_path: Path,
) -> None:
    (debug,) = lowered.methods[0].debug_programs
    assert debug.program is not None
    dump = read_etdump(resources.store.read(capture.methods[0].debug[0].etdump))
    needed = max(entry.offset for entry in dump.tensors if entry.run == 1)
    # Codes of one byte are counted as four, the widest that is logged.
    assert needed < debug.buffer_bytes < 5 * needed
    program = resources.store.read(debug.program)
    flags = ("--dump_intermediate_outputs", "--debug_output_path=debug.bin")
    enough = f"--debug_buffer_size={debug.buffer_bytes}"
    assert start_runner(tmp_path / "enough", program, images[:1], *flags, enough).exit_code == 0
    done = start_runner(tmp_path / "one", program, images[:1], *flags, "--debug_buffer_size=1")
    assert (done.exit_code, done.outputs) == (-6, {})
    assert not (tmp_path / "one" / "etdump.etdp").exists()
