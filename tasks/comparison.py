"""One capture against its references: outputs rung by rung, operators total and introduced. Runs in a child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load

from conf.schema import ToleranceConfig
from tasks.errors import EvidenceError
from tasks.numerics.align import AlignedOperator, Alignment, Match, align
from tasks.numerics.dequantize import snap, undo_layout
from tasks.numerics.ladder import RUNGS
from tasks.numerics.metrics import snr_db, top1
from tasks.numerics.operators import compare_operator, compare_values
from tasks.numerics.replay import Captured, Introduced, Kernels, effect_db, replay
from tasks.numerics.timing import profile
from tasks.numerics.verdict import introduces, limits, verdict
from tasks.records import Blob, Capture, Comparison, Gap, LoweredProgram, OperatorComparison, OutputComparison
from tasks.storage.store import Store
from tasks.toolchain.calls import reference_kernels
from tasks.toolchain.etdump import ETDump, LoggedTensor, read_etdump, tensor

Array = NDArray[Any]
Tensors = Mapping[str, Array]

_MOST_EFFECTS = 16
"""How many operators of a sample are followed to the final outputs, the worst first."""


def compare_capture(
    lowered: LoweredProgram,
    capture: Capture,
    classifier: bool,
    tolerance: ToleranceConfig,
    replayed: bool,
    store: Store,
) -> Comparison:
    """Final outputs against eager PyTorch, operators against the edge graph.

    `classifier`: the largest element of an output is the model's answer. `replayed`: tell introduced from inherited
    error. Raises EvidenceError when the capture does not hold what its record says.
    """
    exported = lowered.quantized.exported
    rungs = {
        "quantized": _read(store, lowered.quantized.outputs_quantized),
        "edge": _read(store, lowered.outputs_edge),
        "device": _read(store, capture.outputs),
    }
    alignment = _aligned(lowered, capture, store)
    operators = (
        () if alignment is None else tuple(_Operators(lowered, capture, tolerance, replayed, store).rows(alignment))
    )
    return Comparison(
        outputs=tuple(_outputs(lowered, rungs, _read(store, exported.outputs_eager), classifier)),
        operators=operators,
        profile=profile(read_etdump(store.read(capture.etdump)).events),
        observer_effect_snr_db=_observer_effect(capture, rungs["device"], store),
        unexpected_events=() if alignment is None else alignment.unexpected,
    )


def _outputs(
    lowered: LoweredProgram, rungs: Mapping[str, Tensors], eager: Tensors, classifier: bool
) -> Iterator[OutputComparison]:
    exported = lowered.quantized.exported
    before: str | None = None
    for rung in (each for each in RUNGS if each in rungs):
        for sample, name in enumerate(exported.sample_names):
            for index, output in enumerate(exported.outputs):
                key = f"{sample}/{index}"
                actual, reference = rungs[rung][key], eager[key]
                compared = compare_values(actual, reference)
                yield OutputComparison(
                    rung=rung,
                    sample=sample,
                    sample_name=name,
                    output_index=index,
                    output=output.name,
                    shape=tuple(actual.shape),
                    status=compared.status,
                    gap=compared.gap,
                    previous_rung=before,
                    previous_snr_db=compare_values(actual, rungs[before][key]).gap.snr_db if before else None,
                    label=exported.labels[sample],
                    top1_reference=top1(reference) if classifier else None,
                    top1_actual=top1(actual) if classifier else None,
                )
        before = rung


def _aligned(lowered: LoweredProgram, capture: Capture, store: Store) -> Alignment[LoggedTensor] | None:
    """A row for every operator and sample, or None when no debug program ran."""
    if capture.etdump_debug is None:
        return None
    dump = read_etdump(store.read(capture.etdump_debug))
    return align(lowered.operators, lowered.dumped, dump.tensors, runs=_runs(dump, lowered.operator_samples))


def _runs(dump: ETDump, samples: int) -> list[int]:
    """The file's runs that are inferences, one a sample, in the samples' order; loading the program is another."""
    runs = sorted({event.run for event in dump.events if event.name == "Method::execute"})
    if len(runs) != samples:
        raise EvidenceError(f"the debug program's etdump holds {len(runs)} inferences, {samples} were asked for")
    return runs


@dataclass(frozen=True, slots=True)
class _Seen:
    """An operator's tensor from the device, and what was announced of it."""

    match: Match[LoggedTensor]
    elements: Array

    @property
    def layout_undone(self) -> Array | None:
        order = self.match.dumped.axis_order
        if order is not None and len(order) != self.elements.ndim:
            return None
        return undo_layout(self.elements, order)


class _Operators:
    """The operators of one capture, sample by sample. Captured and reference tensors stay on disk until looked at."""

    def __init__(
        self, lowered: LoweredProgram, capture: Capture, tolerance: ToleranceConfig, replayed: bool, store: Store
    ) -> None:
        assert capture.debug_buffer is not None, "collected with every debug launch"
        self._lowered = lowered
        self._tolerance = tolerance
        store.verify(capture.debug_buffer)
        path = store.path(capture.debug_buffer)
        self._buffer = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        store.verify(lowered.reference)
        self._reference = safe_open(store.path(lowered.reference), framework="np")
        self._keys = frozenset(self._reference.keys())
        self._kernels_on = reference_kernels(lowered, store) if replayed else None
        self._evaluation = _read(store, lowered.quantized.exported.evaluation) if replayed else {}

    def rows(self, alignment: Alignment[LoggedTensor]) -> Iterator[OperatorComparison]:
        runs = list(dict.fromkeys(row.run for row in alignment.operators))
        for sample, run in enumerate(runs):
            yield from self._sample(sample, [row for row in alignment.operators if row.run == run])

    def _sample(self, sample: int, aligned: list[AlignedOperator[LoggedTensor]]) -> Iterator[OperatorComparison]:
        seen = {
            row.operator.index: _Seen(row.matches[0], tensor(row.matches[0].event, self._buffer))
            for row in aligned
            if row.reason is None
        }
        kernels = self._kernels(sample)
        found = {} if kernels is None else replay(kernels, self._captured(seen), self._doubtful)
        rows = [self._row(sample, row, seen.get(row.operator.index), found, kernels) for row in aligned]
        yield from rows if kernels is None else self._followed(sample, rows, found, kernels)

    def _row(
        self,
        sample: int,
        row: AlignedOperator[LoggedTensor],
        seen: _Seen | None,
        found: Mapping[int, Introduced],
        kernels: Kernels | None,
    ) -> OperatorComparison:
        operator = row.operator
        if row.reason is not None or seen is None:
            assert row.reason is not None, "an operator without a reason was seen"
            return OperatorComparison(operator=operator, sample=sample, status=row.reason, gap=Gap())
        introduced = found.get(operator.index)
        reference = self._reference.get_tensor(f"{sample}/{operator.index}")
        dumped = seen.match.dumped
        visible = introduced.visible if introduced else None
        compared = compare_operator(operator, dumped.quantization, dumped.axis_order, seen.elements, reference, visible)
        return OperatorComparison(
            operator=operator,
            sample=sample,
            status=compared.status,
            gap=compared.gap,
            nonfinite_actual=compared.nonfinite_actual,
            nonfinite_reference=compared.nonfinite_reference,
            introduced=introduced.gap if introduced else Gap(),
            introduced_steps=introduced.steps if introduced else None,
            verdict=verdict(compared.status, compared.gap, introduced, self._limits(operator.index)),
            masked_elements=introduced.masked if introduced else 0,
            masked_by=self._names(introduced.masked_by) if introduced else (),
            spans=self._names(introduced.spans) if introduced else (),
            why=kernels.refusals.get(operator.index) if kernels else None,
        )

    def _followed(
        self, sample: int, rows: list[OperatorComparison], found: Mapping[int, Introduced], kernels: Kernels
    ) -> Iterator[OperatorComparison]:
        """The rows, those that introduce error with what it does to the final outputs."""
        guilty = [row for row in rows if row.verdict == "introduced"]
        guilty.sort(key=lambda row: row.introduced.snr_db if row.introduced.snr_db is not None else -np.inf)
        reference = _Reference(self._reference, self._keys, sample, kernels) if guilty else None
        effects: dict[int, float | None] = {}
        for row in guilty[:_MOST_EFFECTS]:
            error = found[row.operator.index].error
            if error is not None and reference is not None and np.isfinite(error).all():
                effects[row.operator.index] = effect_db(kernels, row.operator.index, error, reference.values)
        for row in rows:
            yield replace(row, effect_snr_db=effects.get(row.operator.index))

    def _captured(self, seen: Mapping[int, _Seen]) -> dict[int, Captured]:
        """What can be replayed on: tensors of the operator's own shape, with a grid where they are codes."""
        captured: dict[int, Captured] = {}
        for index, each in seen.items():
            operator, elements = self._lowered.operators[index], each.layout_undone
            if elements is None or elements.shape != operator.shape:
                continue
            codes = elements.dtype.kind in "iu" and (operator.dtype or "").startswith(("float", "bfloat"))
            grid = each.match.dumped.quantization if codes else None
            if not codes or grid is not None:
                captured[index] = Captured(elements=elements, grid=grid)
        return captured

    def _kernels(self, sample: int) -> Kernels | None:
        if self._kernels_on is None:
            return None
        specs = self._lowered.quantized.exported.inputs
        inputs = [self._evaluation[f"{sample}/{spec.name}"] for spec in specs]
        grids = self._lowered.input_grids
        return self._kernels_on(
            [
                each if grid is None else snap(each, grid).astype(each.dtype)
                for each, grid in zip(inputs, grids, strict=True)
            ]
        )

    def _limits(self, index: int) -> Any:
        operator = self._lowered.operators[index]
        return limits(self._tolerance.operators, self._lowered.quantized.scheme, operator.target)

    def _doubtful(self, index: int, found: Introduced) -> bool:
        return introduces(found, self._limits(index))

    def _names(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._lowered.operators[index].name for index in indices)


class _Reference:
    """Every operator's value in the reference's own run of one sample; tuples are made again from what they take."""

    def __init__(self, file: Any, keys: frozenset[str], sample: int, kernels: Kernels) -> None:
        self.values: dict[int, Any] = {}
        for index in range(len(kernels.sources)):
            key = f"{sample}/{index}"
            if key in keys:
                self.values[index] = file.get_tensor(key)
            elif (made := kernels.call(index, self.values)) is not None:
                self.values[index] = made


def _observer_effect(capture: Capture, shipping: Tensors, store: Store) -> float | None:
    """The worst SNR, in dB, of the debug program's final outputs against the shipping program's."""
    if capture.outputs_debug is None:
        return None
    debug = _read(store, capture.outputs_debug)
    found = [snr_db(answer, shipping[key]) for key, answer in debug.items()]
    return min((each for each in found if each is not None), default=None)


def _read(store: Store, blob: Blob) -> Tensors:
    return load(store.read(blob))
