"""Damage to the files of a debug capture, written back as ExecuTorch writes them, then compared as ever.

Imported in workers: the tests' own process never loads ExecuTorch.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Capture, Comparison, ExpectedTensor, LoweredProgram
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES, VERDICTS
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import with_method

RELU, POOL, VIEW = "aten_relu_default@0", "aten_max_pool2d_with_indices_default@0", "aten_view_copy_default@0"


@dataclass(kw_only=True)
class Files:
    """The two files of a debug capture: the etdump as ExecuTorch's own classes, and the debug buffer."""

    etdump: Any
    buffer: bytearray

    def run(self, number: int) -> list[Any]:
        """The events of one run; run 0 is the loading."""
        return self.etdump.run_data[number].events

    def event(self, identifier: str) -> Any:
        """The first sample's event of that name."""
        return next(event for event in self.run(1) if _identifier(event) == identifier)

    def tensor(self, identifier: str) -> Any:
        return self.event(identifier).debug_event.debug_entry.tensor


def _identifier(event: Any) -> str | None:
    return event.debug_event and event.debug_event.delegate_debug_id_str


def nothing(files: Files) -> None:
    pass


def buffer_truncated(files: Files) -> None:
    del files.buffer[files.tensor(POOL).offset + 1 :]


def buffer_empty(files: Files) -> None:
    files.buffer.clear()


def event_dropped(files: Files) -> None:
    files.run(1).remove(files.event(RELU))


def inference_dropped(files: Files) -> None:
    files.etdump.run_data.pop()


def event_twice(files: Files) -> None:
    files.run(1).append(files.event(RELU))


def events_reversed(files: Files) -> None:
    for number in (1, 2):
        files.run(number).reverse()


def names_exchanged(files: Files) -> None:
    relu, pool = files.event(RELU).debug_event, files.event(POOL).debug_event
    relu.delegate_debug_id_str, pool.delegate_debug_id_str = POOL, RELU


def event_extra(files: Files) -> None:
    extra = copy.deepcopy(files.event(RELU))
    extra.debug_event.delegate_debug_id_str = "aten_relu_default_17@0"
    files.run(1).append(extra)


def tensor_empty(files: Files) -> None:
    files.tensor(RELU).sizes[1] = 0


def tensor_of_other_shape(files: Files) -> None:
    tensor = files.tensor(RELU)
    tensor.sizes, tensor.strides = tensor.sizes[1:], tensor.strides[1:]


def tensor_of_unknown_type(files: Files) -> None:
    files.tensor(RELU).scalar_type = 23


def _log_again(files: Files, code: int, dtype: str, odd: float) -> None:
    """The relu logged as another type, behind everything else: ones, and one odd value."""
    tensor = files.tensor(RELU)
    values = np.ones(tensor.sizes, dtype)
    values.flat[5] = odd
    tensor.scalar_type, tensor.offset = code, len(files.buffer)
    files.buffer += values.tobytes()


def not_a_number(files: Files) -> None:
    _log_again(files, 6, "<f4", float("nan"))


def infinite(files: Files) -> None:
    _log_again(files, 6, "<f4", float("inf"))


def huge(files: Files) -> None:
    _log_again(files, 7, "<f8", -1.7e308)


def compared_after(
    damage: Callable[[Files], None], lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store
) -> Comparison:
    """What the comparison makes of the capture with this damage."""
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc, serialize_to_etdump_flatcc

    first, *others = capture.methods[0].debug
    files = Files(
        etdump=deserialize_from_etdump_flatcc(store.read(first.etdump)), buffer=bytearray(store.read(first.buffer))
    )
    damage(files)
    written = serialize_to_etdump_flatcc(files.etdump)
    damaged = replace(
        first,
        etdump=store.put_bytes(len(written).to_bytes(4, "little") + written),  # it leaves out the size
        buffer=store.put_bytes(bytes(files.buffer)),
    )
    changed = with_method(capture, debug=(damaged, *others))
    return compare_methods(lowered, changed, options, store)


def compared_with_a_handle_announced_twice(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store
) -> Comparison:
    """The same, the lowering having announced another tensor under the relu's handle."""
    (handle,) = next(
        tensor.debug_handles for tensor in lowered.methods[0].expected_tensors if tensor.identifier == RELU
    )
    other = ExpectedTensor(
        identifier="aten_relu_default_9@0", debug_handles=(handle,), output_index=0, quantization=None, axis_order=None
    )
    announced = with_method(lowered, expected_tensors=(*lowered.methods[0].expected_tensors, other))
    return compare_methods(announced, capture, options, store)


def compared_with_an_odd_answer(
    lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store
) -> Comparison:
    """The same with a NaN among the first sample's answers."""
    outputs = {key: value.copy() for key, value in load(store.read(capture.methods[0].outputs)).items()}
    outputs["0/0"].flat[3] = np.nan
    changed = with_method(capture, outputs=store.put_bytes(save(outputs)))
    return compare_methods(lowered, changed, options, store)


def fuzzed(
    field: str, profile: settings, lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store
) -> Counter[str]:
    """Compare captures whose file `field` is damaged, and count how many are compared and how many are refused.

    Raises any error that the comparison must not raise.
    """
    outcomes: Counter[str] = Counter()
    captured = capture.methods[0]
    first, *others = captured.debug
    blobs = {"etdump": captured.etdump, "debug etdump": first.etdump, "debug buffer": first.buffer}
    expected = [
        (sample, operator) for sample in capture.methods[0].captured for operator in lowered.methods[0].operators
    ]

    @settings(profile, database=None, suppress_health_check=list(HealthCheck))
    @given(data=_mutated(store.read(blobs[field])))
    def compare(data: bytes) -> None:
        blob = store.put_bytes(data)
        if field == "etdump":
            changed = with_method(capture, etdump=blob)
        else:
            changed = with_method(capture, debug=(replace(first, **{field.removeprefix("debug "): blob}), *others))
        try:
            comparison = compare_methods(lowered, changed, options, store)
        except EvidenceError:
            outcomes["refused"] += 1
            return
        assert [(row.sample, row.operator) for row in comparison.operators] == expected
        for row in comparison.operators:
            assert row.status in OPERATOR_STATUSES
            assert row.verdict in VERDICTS
            assert (row.gap.mse is not None) <= (row.status in COMPARED)
            numbers = [*asdict(row.gap).values(), *asdict(row.parts).values()]
            assert all(number is None or math.isfinite(number) for number in numbers)
        outcomes["compared"] += 1

    compare()
    return outcomes


@st.composite
def _mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """A file cut short, gone on, with other bytes in a few places, or with what belongs elsewhere in one."""
    kind = draw(st.sampled_from(["cut", "extended", "moved", "bytes", "bytes"]))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if kind == "extended":
        return data + draw(st.binary(min_size=1, max_size=40))
    changed = bytearray(data)
    if kind == "moved":
        size = draw(st.integers(1, 64))
        start, end = draw(st.integers(0, len(data) - size)), draw(st.integers(0, len(data) - size))
        changed[end : end + size] = data[start : start + size]
    else:
        bytes_at = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255))
        for position, value in draw(st.lists(bytes_at, min_size=1, max_size=3)):
            changed[position] = value
    return bytes(changed)
