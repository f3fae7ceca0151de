"""The operators of a debug capture. Their logged tensors are read when used. This module runs in a worker process."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.ablation import error_energy
from qnnsweep.tasks.numerics.align import AlignedOperator, Match, align
from qnnsweep.tasks.numerics.arithmetic import as_half, read_half
from qnnsweep.tasks.numerics.dequantize import on_grid, quantize, undo_layout
from qnnsweep.tasks.numerics.element_use import CapturedValue, Kernels
from qnnsweep.tasks.numerics.timing import EXECUTION
from qnnsweep.tasks.records import (
    Blob,
    CapturedMethod,
    DebugFiles,
    LoweredMethod,
    Operator,
    OtherReference,
    RequantizedTensor,
    Unlogged,
)
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.entrypoints import other_values, reference_kernels, reference_values
from qnnsweep.tasks.toolchain.readback.etdump import ETDump, read_etdump, tensor

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoggedOperator:
    """A tensor that the device logged for an operator, and the expected tensor with which it was matched."""

    match: Match
    elements: Array
    is_half: bool = False  # computed in float16

    @property
    def in_torch_layout(self) -> Array | None:
        """Return the tensor in PyTorch's layout; None if the expected layout does not fit the tensor."""
        order = self.match.expected.axis_order
        if order is not None and len(order) != self.elements.ndim:
            return None
        return undo_layout(self.elements, order)


@dataclass(frozen=True, slots=True)
class _Logged:
    """An operator or a requantized tensor of one sample, and the debug buffer that has its elements."""

    row: AlignedOperator
    buffer: NDArray[np.uint8]

    def tensor(self, halves: frozenset[int]) -> LoggedOperator:
        """Return the only tensor that was logged for an operator. `halves`: the operators that have float16 values."""
        elements = tensor(self.row.matches[0].event, self.buffer)
        is_half = self.row.operator.index in halves and elements.dtype == np.float32
        if is_half:
            elements = read_half(elements)
        # A delegate may give a value without dimensions a dimension of 1.
        has_added_dimension = (self.row.operator.shape, elements.shape) == ((), (1,))
        return LoggedOperator(self.row.matches[0], elements.reshape(()) if has_added_dimension else elements, is_half)

    def or_other(self, other: "_Logged") -> "_Logged":
        """Return `other`, which is from the log of another debug program, if this log has no tensor of the operator."""
        return other if self.row.reason == "not_dumped" else self


@dataclass(frozen=True, kw_only=True, slots=True)
class _LoggedSample:
    """The operators and the requantized tensors of one sample, each from the debug program that logs it."""

    operators: list[_Logged]
    requantized: list[_Logged]

    def joined(self, other: "_LoggedSample") -> "_LoggedSample":
        """Return the sample with what another debug program logged."""
        return _LoggedSample(
            operators=[*map(_Logged.or_other, self.operators, other.operators)],
            requantized=[*map(_Logged.or_other, self.requantized, other.requantized)],
        )


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """The model's inputs for one sample, before and after they are rounded to the device's grids."""

    exact: Sequence[Array]
    rounded: Sequence[Array]
    in_float16: Sequence[bool]


class Evidence:
    """The operators of one debug capture, sample by sample. Its tensors are views into files.

    Raises EvidenceError if the capture does not agree with its record.
    """

    def __init__(self, lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> None:
        assert capture.debug, "only a debug capture has operators"
        self._lowered = lowered
        self._store = store
        self._capture = capture
        self._halves = half_operators(lowered)
        for blob in lowered.reference:
            store.verify(blob)
        self._reference = {
            choice.sample: safe_open(store.path(blob), framework="np")
            for choice, blob in zip(lowered.chosen, lowered.reference, strict=True)
        }
        self._logged_by: dict[int, _LoggedSample] = {}
        unexpected: list[str] = []
        for files in capture.debug:
            unexpected += self._read(files)
        self.unexpected = tuple(dict.fromkeys(unexpected))
        self.samples = tuple(sorted(self._logged_by))
        """The samples that were captured, numbered like the evaluation samples."""
        # The values of samples that the lowering did not choose, by the name of the reference and the sample.
        self._computed: dict[tuple[str, int], Mapping[int, Array]] = {}
        self._stored: dict[str, Mapping[str, Array]] = {}

    def _read(self, files: DebugFiles) -> tuple[str, ...]:
        """Read the log of one launch. Return the logged tensors that belong to no operator."""
        lowered, store = self._lowered, self._store
        dump = read_etdump(store.read(files.etdump))
        runs = inferences(dump, len(files.samples))
        expected = lowered.expected_in(files.part)
        alignment = align(lowered.operators, expected, dump.tensors, requantized=lowered.requantized, runs=runs)
        store.verify(files.buffer)
        buffer = np.memmap(store.path(files.buffer), np.uint8, "r") if files.buffer.size else np.empty(0, np.uint8)
        for sample, run in zip(files.samples, runs, strict=True):
            logged = _LoggedSample(
                operators=[_Logged(row, buffer) for row in alignment.operators if row.run == run],
                requantized=[_Logged(row, buffer) for row in alignment.requantized if row.run == run],
            )
            before = self._logged_by.get(sample)
            self._logged_by[sample] = logged if before is None else before.joined(logged)
        return alignment.unexpected

    @cached_property
    def debug_outputs(self) -> Mapping[str, Array]:
        """The final outputs of the debug program, by the key `<sample>/<output index>`."""
        return debug_outputs(self._lowered, self._capture, self._store)

    def aligned(self, sample: int) -> list[AlignedOperator]:
        """Return every operator with the tensor that was logged for it, or the reason why there is none."""
        return [logged.row for logged in self._logged_by[sample].operators]

    def why_not_logged(self, index: int) -> str | None:
        """Return why no debug program logs an operator, or why the program that logs it has no log."""
        return next((why.reason for why in self._unlogged if why.span.first <= index < why.span.end), None)

    @cached_property
    def _unlogged(self) -> list[Unlogged]:
        """The operators without a log: those of no debug program, and those of the programs that failed."""
        failures, parts = self._capture.failures, enumerate(self._lowered.debug_programs, start=1)
        failed = (
            Unlogged(span=debug.span, reason=reason)
            for number, debug in parts
            if debug.span is not None and (reason := debug.unavailable or failures.get(number)) is not None
        )
        return [*self._lowered.unlogged, *failed]

    def logged_operators(self, sample: int) -> dict[int, LoggedOperator]:
        """Map operator indices to logged tensors. Only operators with exactly one logged tensor are included."""
        rows = self._logged_by[sample].operators
        return {logged.row.operator.index: logged.tensor(self._halves) for logged in rows if logged.row.reason is None}

    def captured_values(self, sample: int) -> dict[int, CapturedValue]:
        """Return the values that a replay can use. These have the operator's shape and, if quantized, qparams."""
        values = (
            (index, captured_value(self._lowered.operators[index], logged))
            for index, logged in self.logged_operators(sample).items()
        )
        return {index: value for index, value in values if value is not None}

    def requantized(self, sample: int) -> Iterator[tuple[RequantizedTensor, AlignedOperator, LoggedOperator | None]]:
        """Yield every requantized tensor with its alignment, and with the logged tensor if there is exactly one."""
        rows = self._logged_by[sample].requantized
        for record, logged in zip(self._lowered.requantized, rows, strict=True):
            yield record, logged.row, logged.tensor(self._halves) if logged.row.reason is None else None

    def requantized_values(
        self, sample: int, sources: Sequence[Sequence[int]], captured: Mapping[int, CapturedValue]
    ) -> dict[tuple[int, int], CapturedValue]:
        """Map readers and sources, by operator index, to the sources' values on the grids that the readers get.

        `sources`: per operator, the operators that it reads.
        """
        values = {
            (reader, source): rounded
            for reader, read in enumerate(sources)
            for source in read
            if source in captured and self._lowered.operators[reader].subgraph is not None
            if (rounded := on_own_grid(captured[source], self._lowered.operators[source])) is not captured[source]
        }
        for record, _, logged in self.requantized(sample):
            value = None if logged is None else captured_value(record.operator, logged)
            if value is not None and record.source is not None:
                values |= {(reader, record.source): value for reader in record.readers}
        return values

    def reference(self, sample: int, index: int) -> Array:
        """Return the operator's value in the edge graph's own run, which starts from the model's input."""
        if sample in self._reference:
            return self._reference[sample].get_tensor(tensor_key(sample, index))
        return self._computed_values("edge", sample, partial(reference_values, self._lowered))[index]

    def others(self, names: Sequence[str]) -> list[OtherReference]:
        """Return every reference in `names` except the edge graph."""
        return [reference for reference in self._lowered.references if reference.name in names]

    def other_value(self, other: OtherReference, sample: int, index: int) -> Array:
        """Return the value in another reference of an operator whose counterpart has one."""
        if sample in self._reference:
            if other.name not in self._stored:
                self._stored[other.name] = load(self._store.read(other.values))
            return self._stored[other.name][tensor_key(sample, index)]
        return self._computed_values(other.name, sample, partial(other_values, self._lowered, other))[index]

    def _computed_values(
        self, name: str, sample: int, compute: Callable[[Store, Sequence[Array]], Mapping[int, Array]]
    ) -> Mapping[int, Array]:
        """Return the values in a reference's own run on a sample. They are computed once."""
        if (name, sample) not in self._computed:
            exported = self._lowered.exported
            tensors: Mapping[str, Array] = load(self._store.read(exported.evaluation))
            inputs = [tensors[tensor_key(sample, spec.name)] for spec in exported.inputs]
            self._computed[name, sample] = compute(self._store, inputs)
        return self._computed[name, sample]

    def kernels(self, samples: Iterable[int]) -> Iterator[tuple[Kernels, SampleInputs]]:
        """Yield the kernels and the inputs of every sample. The kernels compute from the rounded inputs."""
        exported, input_qparams = self._lowered.quantized.exported, self._lowered.input_qparams
        halves = self._halves | {row.index for row in self._lowered.operators if row.constant and self._halves}
        kernels_on = reference_kernels(self._lowered, self._store, frozenset(halves))
        tensors: dict[str, Array] = load(self._store.read(exported.evaluation))
        for files in self._capture.debug:  # with states, the inputs that the device had
            tensors |= load(self._store.read(files.inputs)) if files.inputs else {}
        # A program with operators on the CPU may read an input in float32.
        is_whole = all(row.constant or row.subgraph is not None for row in self._lowered.operators)
        in_float16 = bool(self._halves) and is_whole
        for sample in samples:
            exact = [tensors[tensor_key(sample, spec.name)] for spec in exported.inputs]
            pairs = list(zip(exact, input_qparams, strict=True))
            halves_of = [in_float16 and qparams is None and value.dtype == np.float32 for value, qparams in pairs]
            rounded = [
                as_half(value) if is_half else value if qparams is None else on_grid(value, qparams)
                for (value, qparams), is_half in zip(pairs, halves_of, strict=True)
            ]
            is_rounded = bool(self._halves) or any(qparams is not None for qparams in input_qparams)
            yield kernels_on(rounded, exact if is_rounded else ()), SampleInputs(exact, rounded, halves_of)


def device_outputs(lowered: LoweredMethod, outputs: Blob, store: Store) -> dict[str, Array]:
    """Return the device's final outputs, by `<sample>/<output index>`, with the infinities and NaNs of float16."""
    halves = half_operators(lowered)
    in_float16 = {f"{number}" for number, index in enumerate(lowered.output_operators) if index in halves}
    return {
        key: read_half(value) if key.rpartition("/")[2] in in_float16 and value.dtype == np.float32 else value
        for key, value in load(store.read(outputs)).items()
    }


def debug_outputs(lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> dict[str, Array]:
    """Return the debug program's final outputs of the captured samples; see `device_outputs`.

    Of several debug programs, each output is that which differs most from the shipping program's.
    """
    by_key = defaultdict[str, list[Array]](list)
    for files in capture.debug:
        for key, value in device_outputs(lowered, files.outputs, store).items():
            by_key[key].append(value)
    if all(len(values) == 1 for values in by_key.values()):
        return {key: value for key, (value,) in by_key.items()}
    shipping = device_outputs(lowered, capture.outputs, store)
    return {key: max(values, key=partial(error_energy, reference=shipping[key])) for key, values in by_key.items()}


def half_operators(lowered: LoweredMethod) -> frozenset[int]:
    """Return the operators whose values the device computes in float16."""
    if not _has_float16(lowered):
        return frozenset()
    return frozenset(
        row.index
        for row in lowered.operators
        if row.subgraph is not None and row.quantization is None and not row.constant
    )


def _has_float16(lowered: LoweredMethod) -> bool:
    """Return whether a delegate computes in float16."""
    elements = {
        element
        for delegate in (lowered.debug_facts or lowered.facts).delegates
        for element in (delegate.precision, *(delegate.context.kernel_elements if delegate.context else ()))
    }
    return "float16" in elements


def captured_value(operator: Operator, logged: LoggedOperator) -> CapturedValue | None:
    """Return a logged tensor as a value that a replay can use; None if its shape or its qparams are missing."""
    elements = logged.in_torch_layout
    if elements is None or elements.shape != operator.shape:
        return None
    quantized = elements.dtype.kind in "iu" and (operator.dtype or "").startswith(("float", "bfloat"))
    qparams = logged.match.expected.quantization if quantized else None
    return (
        None
        if quantized and qparams is None
        else CapturedValue(elements=np.asarray(elements, order="C"), qparams=qparams, half=logged.is_half)
    )


def on_own_grid(value: CapturedValue, operator: Operator) -> CapturedValue:
    """Return an operator's value as its readers receive it: a delegate rounds values that are logged as floats.

    These values come from the CPU, or from a delegate that computes in floats.
    """
    if value.qparams is not None or value.elements.dtype.kind != "f" or operator.quantization is None:
        return value
    rounded = quantize(value.elements, operator.quantization)
    return CapturedValue(elements=rounded, qparams=operator.quantization, inferred=True)


def inferences(dump: ETDump, samples: int) -> list[int]:
    """Return the runs that are inferences, one per sample, in order. The run that loads the program is left out."""
    runs = sorted({event.run for event in dump.events if event.name == EXECUTION})
    if len(runs) != samples:
        raise EvidenceError(
            f"the debug program's etdump holds {len(runs)} inferences, but {samples} were requested; "
            "measure again with reuse=programs"
        )
    return runs
