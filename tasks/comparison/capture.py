"""One capture against its references: outputs rung by rung, operators total and introduced. Runs in a worker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from conf.schema import OperatorTolerance, ToleranceConfig
from tasks.comparison.evidence import Evidence, LoggedOperator
from tasks.comparison.metrics import Pair, measured_by
from tasks.comparison.profile import profiled
from tasks.numerics.align import AlignedOperator
from tasks.numerics.element_use import Kernels
from tasks.numerics.metrics import snr_db, top1
from tasks.numerics.operators import compare_operator, compare_values, in_reference_world
from tasks.numerics.probe import probe
from tasks.numerics.replay import Introduced, effect_db, replay
from tasks.numerics.verdict import introduces, limits, verdict
from tasks.records import (
    Blob,
    Capture,
    Comparison,
    Gap,
    LoweredProgram,
    MetricValue,
    Operator,
    OperatorComparison,
    OtherReference,
    OutputComparison,
)
from tasks.records.vocabulary import COMPARED, RUNGS, Reference, Rung
from tasks.storage.store import Store
from tasks.toolchain.readback.etdump import LoggedTensor

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
    metrics: Sequence[str] = (),
    references: Sequence[str] = (),
) -> Comparison:
    """Final outputs against eager PyTorch, operators against the edge graph, and against `references`.

    `classifier`: the largest element of an output is the model's answer. `replayed`: tell introduced from inherited
    error. `metrics`: what else to measure (`measure.metrics`). Raises EvidenceError when the capture does not hold what
    its record says.
    """
    exported = lowered.quantized.exported
    rungs: dict[Rung, Tensors] = {
        "exported": _read(store, exported.outputs_exported),
        "quantized": _read(store, lowered.quantized.outputs_quantized),
        "edge": _read(store, lowered.outputs_edge),
        "device": _read(store, capture.outputs),
    }
    eager = _read(store, exported.outputs_eager)
    evidence = Evidence(lowered, capture, store) if capture.etdump_debug is not None else None
    judge = _Judge(lowered, evidence, tolerance, bool(metrics), references) if evidence else None
    return Comparison(
        outputs=tuple(_outputs(lowered, rungs, eager, classifier)),
        operators=tuple(judge.rows(replayed)) if judge else (),
        metrics=measured_by(metrics, [*_output_pairs(rungs, eager), *(judge.pairs if judge else ())])
        if metrics
        else (),
        io_checks=probe(exported, eager, _read(store, exported.mistaken_outputs), rungs["device"]),
        profile=profiled(lowered, capture, store=store),
        observer_effect_snr_db=_observer_effect(capture, rungs["device"], store),
        unexpected_events=evidence.unexpected if evidence else (),
        other_references=tuple(judge.other_references) if judge else (),
    )


def _outputs(
    lowered: LoweredProgram, rungs: Mapping[Rung, Tensors], eager: Tensors, classifier: bool
) -> Iterator[OutputComparison]:
    exported = lowered.quantized.exported
    before: Rung | None = None
    for rung in RUNGS:
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


class _Judge:
    """Makes the rows of one capture's operators, sample by sample."""

    def __init__(
        self,
        lowered: LoweredProgram,
        evidence: Evidence,
        tolerance: ToleranceConfig,
        pairing: bool,
        references: Sequence[str],
    ) -> None:
        self._lowered = lowered
        self._evidence = evidence
        self._tolerance = tolerance
        self._pairing = pairing
        self.pairs: list[Pair] = []
        """What was compared, for other metrics; empty unless they were asked for."""
        self._others = list(evidence.others(references))
        self.other_references: list[OperatorComparison] = []
        """The rows of other references; those of a sample come with its rows."""

    def rows(self, replayed: bool) -> Iterator[OperatorComparison]:
        every = self._evidence.kernels() if replayed else repeat(None)
        for sample, kernels in zip(self._evidence.samples, every, strict=False):
            yield from self._sample(sample, kernels)

    def _sample(self, sample: int, kernels: Kernels | None) -> Iterator[OperatorComparison]:
        captured = self._evidence.captured_values(sample) if kernels else {}
        found = replay(kernels, captured, self._is_suspect) if kernels else {}
        logged = self._evidence.logged_operators(sample)
        rows = [
            self._row(sample, row, logged.get(row.operator.index), found.get(row.operator.index), kernels)
            for row in self._evidence.aligned(sample)
        ]
        for other, values in self._others:
            self.other_references += self._against(other, values, sample, logged, found)
        yield from self._followed(sample, rows, found, kernels) if kernels else rows

    def _row(
        self,
        sample: int,
        row: AlignedOperator[LoggedTensor],
        logged: LoggedOperator | None,
        introduced: Introduced | None,
        kernels: Kernels | None,
    ) -> OperatorComparison:
        operator = row.operator
        if row.reason is not None or logged is None:
            assert row.reason is not None, "an operator without a reason was logged"
            return OperatorComparison(operator=operator, sample=sample, status=row.reason, gap=Gap())
        dumped, reference = logged.match.dumped, self._evidence.reference(sample, operator.index)
        used_mask = introduced.used_mask if introduced else None
        compared = compare_operator(
            operator, dumped.quantization, dumped.axis_order, logged.elements, reference, used_mask
        )
        if self._pairing and compared.status in COMPARED:
            actual = in_reference_world(dumped.quantization, dumped.axis_order, logged.elements, reference)
            # Metrics of a user's own may look at the shape: what nobody reads is put right, not left out.
            shown = actual if used_mask is None else np.where(used_mask, actual, reference)
            of = _told(operator, operator.output_index, sample, "edge")
            self.pairs.append(Pair(of=of, actual=shown, reference=reference, qparams=dumped.quantization))
        bare = OperatorComparison(
            operator=operator,
            sample=sample,
            status=compared.status,
            gap=compared.gap,
            nonfinite_actual=compared.nonfinite_actual,
            nonfinite_reference=compared.nonfinite_reference,
            verdict=verdict(compared.status, compared.gap, introduced, self._limits(operator.index)),
            why=kernels.refusals.get(operator.index) if kernels else None,
        )
        if introduced is None:
            return bare
        return replace(
            bare,
            introduced=introduced.gap,
            introduced_steps=introduced.steps,
            masked_elements=introduced.masked,
            masked_by=self._names(introduced.masked_by),
            spans=self._names(introduced.spans),
        )

    def _against(
        self,
        other: OtherReference,
        values: Tensors,
        sample: int,
        logged: Mapping[int, LoggedOperator],
        found: Mapping[int, Introduced],
    ) -> Iterator[OperatorComparison]:
        """A row for every operator and for every node of the other graph that no operator stands for."""
        for row, counterpart in zip(self._evidence.aligned(sample), other.counterparts, strict=True):
            operator, status = row.operator, row.reason or counterpart.status
            told = OperatorComparison(
                operator=operator,
                sample=sample,
                status=status or "compared",
                gap=Gap(),
                reference=other.name,
                nodes=counterpart.nodes,
            )
            if status is None:
                match, introduced = logged[operator.index].match, found.get(operator.index)
                compared = compare_operator(
                    operator,
                    match.dumped.quantization,
                    match.dumped.axis_order,
                    logged[operator.index].elements,
                    values[f"{sample}/{operator.index}"],
                    introduced.used_mask if introduced else None,
                )
                told = replace(told, **{each.name: getattr(compared, each.name) for each in fields(compared)})
            yield told
        for node in other.unclaimed:
            yield OperatorComparison(
                operator=node,
                sample=sample,
                status="no_operator",
                gap=Gap(),
                reference=other.name,
                nodes=(node.name,),
            )

    def _followed(
        self, sample: int, rows: list[OperatorComparison], found: Mapping[int, Introduced], kernels: Kernels
    ) -> list[OperatorComparison]:
        """The rows, those that introduce error with what it does to the final outputs."""
        introducing = [row for row in rows if row.verdict == "introduced"]
        if not introducing:
            return rows
        introducing.sort(key=lambda row: row.introduced.snr_db if row.introduced.snr_db is not None else -math.inf)
        references = self._evidence.references(sample, kernels)
        effects: dict[int, float | None] = {}
        for index in (row.operator.index for row in introducing[:_MOST_EFFECTS]):
            error = found[index].error
            if error is not None and np.isfinite(error).all():
                effects[index] = effect_db(kernels, index, error, references)
        return [replace(row, effect_snr_db=effects.get(row.operator.index)) for row in rows]

    def _is_suspect(self, index: int, found: Introduced) -> bool:
        return introduces(found, self._limits(index))

    def _limits(self, index: int) -> OperatorTolerance:
        operator = self._lowered.operators[index]
        return limits(self._tolerance.operators, self._lowered.quantized.scheme, operator.target)

    def _names(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._lowered.operators[index].name for index in indices)


def _output_pairs(rungs: Mapping[Rung, Tensors], eager: Tensors) -> Iterator[Pair]:
    for rung, answers in rungs.items():
        for key, actual in answers.items():
            sample, _, index = key.partition("/")
            of = replace(_told(None, int(index), int(sample), "eager"), rung=rung)
            yield Pair(of=of, actual=actual, reference=eager[key], qparams=None)


def _told(operator: Operator | None, output_index: int, sample: int, reference: Reference) -> MetricValue:
    return MetricValue(
        operator=operator,
        output_index=output_index,
        sample=sample,
        rung="device",
        reference=reference,
        metric="",
        value=None,
        problem=None,
    )


def _observer_effect(capture: Capture, shipping: Tensors, store: Store) -> float | None:
    """The worst SNR, in dB, of the debug program's final outputs against the shipping program's."""
    if capture.outputs_debug is None:
        return None
    debug = _read(store, capture.outputs_debug)
    found = [snr_db(answer, shipping[key]) for key, answer in debug.items()]
    return min((each for each in found if each is not None), default=None)


def _read(store: Store, blob: Blob) -> Tensors:
    return load(store.read(blob))
