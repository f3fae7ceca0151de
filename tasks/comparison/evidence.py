"""What a capture shows of its operators: whose tensor is where, read when it is looked at. Runs in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from tasks.errors import EvidenceError
from tasks.numerics.align import AlignedOperator, Match, align
from tasks.numerics.dequantize import fake_quantize, undo_layout
from tasks.numerics.element_use import CapturedValue, Kernels, Value
from tasks.records import Capture, LoweredProgram, OtherReference
from tasks.storage.store import Store
from tasks.toolchain.entrypoints import reference_kernels
from tasks.toolchain.readback.etdump import ETDump, LoggedTensor, read_etdump, tensor

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoggedOperator:
    """An operator's tensor from the device as it was logged, and what was announced of it."""

    match: Match[LoggedTensor]
    elements: Array

    @property
    def in_torch_layout(self) -> Array | None:
        """None where the announced layout does not fit the tensor."""
        order = self.match.dumped.axis_order
        if order is not None and len(order) != self.elements.ndim:
            return None
        return undo_layout(self.elements, order)


class Evidence:
    """One debug capture. Every method is of one sample; tensors are views into files.

    Raises EvidenceError when the capture does not hold what its record says.
    """

    def __init__(self, lowered: LoweredProgram, capture: Capture, store: Store) -> None:
        assert capture.etdump_debug is not None, "asked of debug captures alone"
        assert capture.debug_buffer is not None, "collected with every debug launch"
        self._lowered = lowered
        self._store = store
        dump = read_etdump(store.read(capture.etdump_debug))
        self._runs = _runs(dump, lowered.operator_samples)
        alignment = align(lowered.operators, lowered.expected_tensors, dump.tensors, runs=self._runs)
        self.unexpected = alignment.unexpected
        self._aligned: dict[int, list[AlignedOperator[LoggedTensor]]] = {run: [] for run in self._runs}
        for row in alignment.operators:
            self._aligned[row.run].append(row)
        store.verify(capture.debug_buffer)
        path = store.path(capture.debug_buffer)
        self._buffer = np.memmap(path, np.uint8, "r") if capture.debug_buffer.size else np.empty(0, np.uint8)
        store.verify(lowered.reference)
        self._reference = safe_open(store.path(lowered.reference), framework="np")
        self._referenced = frozenset(self._reference.keys())

    @property
    def samples(self) -> range:
        return range(len(self._runs))

    def aligned(self, sample: int) -> list[AlignedOperator[LoggedTensor]]:
        """A row for every operator."""
        return self._aligned[self._runs[sample]]

    def logged_operators(self, sample: int) -> dict[int, LoggedOperator]:
        """The operators that one tensor speaks for."""
        return {
            row.operator.index: LoggedOperator(row.matches[0], tensor(row.matches[0].event, self._buffer))
            for row in self.aligned(sample)
            if row.reason is None
        }

    def captured_values(self, sample: int) -> dict[int, CapturedValue]:
        """Those that can be replayed on: of the operator's own shape, with qparams where the tensor is quantized."""
        return dict(self._captured(sample))

    def reference(self, sample: int, index: int) -> Array:
        """The operator's value in the reference's own run from the model's input."""
        return self._reference.get_tensor(f"{sample}/{index}")

    def others(self, names: Sequence[str]) -> Iterator[tuple[OtherReference, Mapping[str, Array]]]:
        """The other references of these names, with their values."""
        for each in self._lowered.references:
            if each.name in names:
                yield each, load(self._store.read(each.values))

    def references(self, sample: int, kernels: Kernels) -> dict[int, Value]:
        """All of them; constants and tuples, which are not kept, are made again."""
        values: dict[int, Value] = {}
        for index in range(len(kernels.sources)):
            if f"{sample}/{index}" in self._referenced:
                values[index] = self.reference(sample, index)
            elif (made := kernels.call(index, values)) is not None:
                values[index] = made
        return values

    def kernels(self) -> Iterator[Kernels]:
        """The reference's operators on each sample's inputs, put on the device's grid."""
        exported, grids = self._lowered.quantized.exported, self._lowered.input_qparams
        kernels_on = reference_kernels(self._lowered, self._store)
        evaluation: Mapping[str, Array] = load(self._store.read(exported.evaluation))
        for sample in self.samples:
            inputs = [evaluation[f"{sample}/{spec.name}"] for spec in exported.inputs]
            pairs = zip(inputs, grids, strict=True)
            yield kernels_on(
                [x if qparams is None else fake_quantize(x, qparams).astype(x.dtype) for x, qparams in pairs]
            )

    def _captured(self, sample: int) -> Iterator[tuple[int, CapturedValue]]:
        for index, each in self.logged_operators(sample).items():
            operator, elements = self._lowered.operators[index], each.in_torch_layout
            if elements is None or elements.shape != operator.shape:
                continue
            quantized = elements.dtype.kind in "iu" and (operator.dtype or "").startswith(("float", "bfloat"))
            qparams = each.match.dumped.quantization if quantized else None
            if not quantized or qparams is not None:
                yield index, CapturedValue(elements=elements, qparams=qparams)


def _runs(dump: ETDump, samples: int) -> list[int]:
    """The file's runs that are inferences, one a sample, in the samples' order; loading the program is another."""
    runs = sorted({event.run for event in dump.events if event.name == "Method::execute"})
    if len(runs) != samples:
        raise EvidenceError(f"the debug program's etdump holds {len(runs)} inferences, {samples} were asked for")
    return runs
