"""Against two real files, each of a loading and two runs, their debug buffers cut after the last tensor.

`convnet_qnn` is a small 8a8w network dumped in the HTP simulator; `kernels_cpu` is convolution, split, max, gt and
a channels-last relu on ExecuTorch's portable kernels.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tracemalloc
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from flatbuffers import Builder
from hypothesis import example, given
from hypothesis import strategies as st

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records.logs import LoggedTensor
from qnnsweep.tasks.toolchain.readback.etdump import SCALAR_TYPES, SCHEMA, ETDump, read_etdump, tensor

DATA = Path(__file__).parents[2] / "data"
QNN = (DATA / "convnet_qnn.etdump").read_bytes()
CPU = (DATA / "kernels_cpu.etdump").read_bytes()


def test_a_qnn_delegate_logs_one_tensor_an_operator_then_its_arguments_then_the_outputs() -> None:
    dump = read_etdump(QNN)
    first = [entry for entry in dump.tensors if entry.run == 1]
    assert [entry.delegate_identifier for entry in first] == [
        "quantized_decomposed_quantize_per_tensor_default@0",
        "aten_permute_copy_default@0",
        "aten_convolution_default@0",
        "aten_relu_default@0",
        "aten_max_pool2d_with_indices_default@0",
        "aten_convolution_default_1@0",
        "aten_hardtanh_default@0",
        "aten_max_pool2d_with_indices_default_1@0",
        "aten_permute_copy_default_1@0",
        "aten_view_copy_default@0",
        "aten_linear_default@0",
        "output_quantized_decomposed_dequantize_per_tensor_default_2@0",
        None,
        None,
        None,
    ]
    assert first[2] == LoggedTensor(
        run=1,
        chain_index=0,
        instruction_id=0,
        delegate_identifier="aten_convolution_default@0",
        name=None,
        scalar_type="uint8",
        shape=(1, 8, 8, 8),
        strides=(512, 64, 8, 1),
        offset=128,
        is_output=False,
        delegate_argument=False,
        list_index=None,
    )
    assert [entry.delegate_argument for entry in first] == [False] * 12 + [True, True, False]
    assert [(entry.chain_index, entry.is_output) for entry in first[-2:]] == [(0, False), (-1, True)]


def test_a_list_of_tensors_is_several_tensors_and_a_kernel_with_two_results_two_entries() -> None:
    first = [entry for entry in read_etdump(CPU).tensors if entry.run == 1 and not entry.is_output]
    assert [(entry.instruction_id, entry.list_index, entry.scalar_type, entry.strides) for entry in first] == [
        (0, None, "float32", (64, 16, 4, 1)),
        (1, 0, "float32", (32, 16, 4, 1)),
        (1, 1, "float32", (32, 16, 4, 1)),
        (2, None, "float32", (1,)),
        (2, None, "int64", (1,)),
        (3, None, "bool", (32, 16, 4, 1)),
        (4, None, "float32", (32, 1, 8, 2)),
        (5, None, "float32", (32, 1, 8, 2)),
    ]


def test_the_logged_tensors_are_what_the_kernels_computed() -> None:
    buffer = np.frombuffer((DATA / "kernels_cpu.debug").read_bytes(), np.uint8)
    conv, left, right, most, where, positive, last, relu = [
        tensor(entry, buffer) for entry in read_etdump(CPU).tensors if entry.run == 1 and not entry.is_output
    ]
    np.testing.assert_array_equal(np.concatenate([left, right], axis=1), conv)
    assert (most.tolist(), where.tolist()) == ([left.max()], [left.argmax()])
    np.testing.assert_array_equal(positive, right > 0)
    np.testing.assert_array_equal(last, right)
    np.testing.assert_array_equal(relu, np.maximum(right, 0))


def test_timed_events_keep_their_run_instruction_and_ticks() -> None:
    events = [event for event in read_etdump(QNN).events if event.run == 1]
    assert [(event.run_name, event.name, event.chain_index, event.instruction_id) for event in events] == [
        ("Execute", "DELEGATE_CALL", 0, 0),
        ("Execute", "Method::execute", -1, 0),
    ]
    assert (events[0].start, events[0].end) == (136600163, 171751097)


def schema_text(name: str) -> str:
    path = distribution("executorch").locate_file(f"executorch/devtools/etdump/{name}")
    return re.sub(r"//.*", "", Path(str(path)).read_text())


def test_the_field_order_is_that_of_the_installed_schema() -> None:
    text = schema_text("etdump_schema_flatcc.fbs")
    bodies = re.findall(r"table (\w+) \{(.*?)\}", text, re.DOTALL)
    tables = {name: tuple(re.findall(r"(\w+)\s*:", body)) for name, body in bodies}
    assert {name: tables[name] for name in SCHEMA} == dict(SCHEMA)
    assert set(SCALAR_TYPES) == {int(code) for code in re.findall(r"= (\d+)", schema_text("scalar_type.fbs"))}


_EXECUTORCH_READS = """
import dataclasses, json, sys
from executorch.devtools.inspector._inspector_utils import gen_etdump_object
plain = lambda value: value.name if hasattr(value, "name") else value
print(json.dumps([dataclasses.asdict(gen_etdump_object(path)) for path in sys.argv[1:]], default=plain))
"""


def test_executorch_s_own_reader_sees_the_same_file() -> None:
    paths = [DATA / "convnet_qnn.etdump", DATA / "kernels_cpu.etdump"]
    ran = subprocess.run([sys.executable, "-c", _EXECUTORCH_READS, *paths], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    theirs = json.loads(ran.stdout.splitlines()[-1])
    assert [as_executorch_tells(read_etdump(path.read_bytes())) for path in paths] == [as_rows(dump) for dump in theirs]


def as_rows(dump: dict) -> tuple[list, list]:
    """Return the tensors and events that `read_etdump` returns too, from ExecuTorch's nested output."""
    tensors, events = [], []
    for run, data in enumerate(dump["run_data"]):
        for event in data["events"]:
            if (profile := event["profile_event"]) is not None:
                events.append(
                    (
                        data["name"],
                        run,
                        profile["name"],
                        profile["chain_index"],
                        profile["instruction_id"],
                        profile["delegate_debug_id_str"],
                        profile["start_time"],
                        profile["end_time"],
                    )
                )
            if (debug := event["debug_event"]) is not None:
                entry = debug["debug_entry"]
                listed = entry["tensor_list"]["tensors"] if entry["val"] == "TensorList" else [entry["tensor"]]
                tensors += [
                    (
                        run,
                        debug["chain_index"],
                        debug["instruction_id"],
                        debug["delegate_debug_id_str"],
                        logged["scalar_type"],
                        logged["sizes"],
                        logged["strides"],
                        logged["offset"],
                        (entry["output"] or {"bool_val": False})["bool_val"],
                    )
                    for logged in listed
                ]
    return tensors, events


def as_executorch_tells(dump: ETDump) -> tuple[list, list]:
    codes = {name: code for code, name in SCALAR_TYPES.items()}
    tensors = [
        (
            entry.run,
            entry.chain_index % 2**64,
            entry.instruction_id,
            entry.delegate_identifier,
            codes[entry.scalar_type],
            list(entry.shape),
            list(entry.strides),
            entry.offset,
            entry.is_output,
        )
        for entry in dump.tensors
    ]
    events = [
        (
            event.run_name,
            event.run,
            event.name,
            event.chain_index,
            event.instruction_id,
            event.delegate_identifier,
            event.start,
            event.end,
        )
        for event in dump.events
    ]
    return tensors, events


def written(kind: int) -> bytes:
    """Build an ETDump of one run and one debug event, whose entry has the kind of a value but no value."""
    builder = Builder(0)
    builder.StartObject(8)
    builder.PrependInt8Slot(0, kind, 0)
    entry = builder.EndObject()
    builder.StartObject(6)
    builder.PrependInt32Slot(1, 7, -1)
    builder.PrependUOffsetTRelativeSlot(2, entry, 0)
    builder.PrependInt32Slot(3, 12, -1)
    debug = builder.EndObject()
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(2, debug, 0)
    event = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(event)
    events = builder.EndVector()
    builder.StartObject(4)
    builder.PrependInt32Slot(1, 3, -1)
    builder.PrependUOffsetTRelativeSlot(3, events, 0)
    run = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(run)
    runs = builder.EndVector()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, runs, 0)
    builder.FinishSizePrefixed(builder.EndObject(), b"ED00")
    return bytes(builder.Output())


def test_an_entry_that_is_no_tensor_is_left_out() -> None:
    for kind in (0, 1, 2, 3, 4, 7):
        assert read_etdump(written(kind)) == ETDump(tensors=(), events=())


@pytest.mark.parametrize(
    ("kind", "problem"), [(5, "tensor: is missing"), (6, "tensor_list: is missing"), (9, "val: 9 is")]
)
def test_an_entry_that_lacks_its_value_is_refused(kind: int, problem: str) -> None:
    with pytest.raises(EvidenceError, match=rf"run_data\[0\]\.events\[0\]\.debug_event\.debug_entry\.{problem}"):
        read_etdump(written(kind))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "bytes 8 to 12 are b''"),
        (QNN[:8] + b"ED99" + QNN[12:], "bytes 8 to 12 are b'ED99'"),
        (QNN[:-1], "5636 bytes announced, 5635 present"),
        (b"\0\0\0\0" + QNN[4:], "root: 8 bytes at 0 are outside"),
        (QNN[:4] + b"\xff\xff\xff\xff" + QNN[8:], "outside the file's 5636"),
    ],
)
def test_what_is_no_etdump_is_refused_by_name(data: bytes, problem: str) -> None:
    with pytest.raises(EvidenceError, match=re.escape(problem)):
        read_etdump(data)


def test_bytes_after_the_announced_size_are_ignored() -> None:
    assert read_etdump(QNN + bytes(100)) == read_etdump(QNN)


def test_a_file_whose_runs_are_one_run_over_and_over_is_refused() -> None:
    builder = Builder(0)
    builder.StartObject(2)
    allocation = builder.EndObject()
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, allocation, 0)
    event = builder.EndObject()
    builder.StartVector(4, 1000, 4)
    for _ in range(1000):
        builder.PrependUOffsetTRelative(event)
    events = builder.EndVector()
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(3, events, 0)
    run = builder.EndObject()
    builder.StartVector(4, 1000, 4)
    for _ in range(1000):
        builder.PrependUOffsetTRelative(run)
    runs = builder.EndVector()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, runs, 0)
    builder.FinishSizePrefixed(builder.EndObject(), b"ED00")
    with pytest.raises(EvidenceError, match="the same bytes are used repeatedly"):
        read_etdump(bytes(builder.Output()))


DAMAGES = st.lists(st.tuples(st.integers(0, len(CPU) - 1), st.integers(0, 255)), min_size=1, max_size=6)


@given(source=st.sampled_from([QNN, CPU]), damages=DAMAGES, length=st.none() | st.integers(0, len(CPU)))
@example(source=QNN, damages=[], length=None)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    source: bytes, damages: list[tuple[int, int]], length: int | None
) -> None:
    data = bytearray(source)
    for position, value in damages:
        data[position] = value
    if length is not None:  # with a size that owns up to the cut: otherwise that alone would be noticed
        data = bytearray(max(length - 4, 0).to_bytes(4, "little")) + data[4:length]
    buffer = np.zeros(4096, np.uint8)
    tracemalloc.start()
    with contextlib.suppress(EvidenceError):
        for entry in read_etdump(bytes(data)).tensors:
            assert size_or_refusal(entry, buffer) <= buffer.size
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def size_or_refusal(entry: LoggedTensor, buffer: np.ndarray) -> int:
    try:
        return tensor(entry, buffer).nbytes
    except EvidenceError:
        return 0
