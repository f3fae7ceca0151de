"""compare: LoweredProgram + Capture -> Comparison. What the device computed against PyTorch, output and operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from tasks.errors import EvidenceError
from tasks.numerics.align import AlignedOperator, Alignment, align
from tasks.numerics.metrics import snr_db, top1
from tasks.numerics.operators import compare_operator, compare_values
from tasks.profiling import profiled
from tasks.records import Blob, Capture, Comparison, Gap, LoweredProgram, OperatorComparison, OutputComparison
from tasks.stage import stage
from tasks.storage.store import Store
from tasks.toolchain.etdump import ETDump, LoggedTensor, read_etdump, tensor

Tensors = Mapping[str, NDArray[Any]]


def compare(lowered: LoweredProgram, capture: Capture, classifier: bool, *, store: Store) -> Comparison:
    """Final outputs rung by rung against eager PyTorch, every operator against the edge graph.

    `classifier`: the largest element of an output is the model's answer. Raises EvidenceError when the capture does
    not hold what its record says.
    """
    exported = lowered.quantized.exported
    eager = _read(store, exported.outputs_eager)
    rungs = {
        "quantized": _read(store, lowered.quantized.outputs_quantized),
        "edge": _read(store, lowered.outputs_edge),
        "device": _read(store, capture.outputs),
    }
    alignment = _aligned(lowered, capture, store)
    return Comparison(
        outputs=tuple(
            _output(lowered, rung, sample, index, actual[f"{sample}/{index}"], eager, classifier)
            for rung, actual in rungs.items()
            for sample in range(len(exported.sample_names))
            for index in range(len(exported.outputs))
        ),
        operators=() if alignment is None else tuple(_operators(lowered, capture, alignment, store)),
        profile=profiled(lowered, capture, store=store),
        observer_effect_snr_db=_observer_effect(capture, rungs["device"], store),
        unexpected_events=() if alignment is None else alignment.unexpected,
    )


def _output(
    lowered: LoweredProgram,
    rung: str,
    sample: int,
    index: int,
    actual: NDArray[Any],
    eager: Tensors,
    classifier: bool,
) -> OutputComparison:
    exported = lowered.quantized.exported
    reference = eager[f"{sample}/{index}"]
    status, gap = compare_values(actual, reference)
    return OutputComparison(
        rung=rung,
        sample=sample,
        sample_name=exported.sample_names[sample],
        output_index=index,
        output=exported.outputs[index].name,
        shape=tuple(actual.shape),
        status=status,
        gap=gap,
        label=exported.labels[sample],
        top1_reference=top1(reference) if classifier else None,
        top1_actual=top1(actual) if classifier else None,
    )


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


def _operators(
    lowered: LoweredProgram, capture: Capture, alignment: Alignment[LoggedTensor], store: Store
) -> list[OperatorComparison]:
    assert capture.debug_buffer is not None, "collected with every debug launch"
    buffer = np.frombuffer(store.read(capture.debug_buffer), np.uint8)
    reference = _read(store, lowered.reference)
    sample_of = {run: sample for sample, run in enumerate(dict.fromkeys(row.run for row in alignment.operators))}
    return [_operator(row, sample_of[row.run], buffer, reference) for row in alignment.operators]


def _operator(
    row: AlignedOperator[LoggedTensor], sample: int, buffer: NDArray[np.uint8], reference: Tensors
) -> OperatorComparison:
    if row.reason is not None:
        return OperatorComparison(operator=row.operator, sample=sample, status=row.reason, gap=Gap())
    (match,) = row.matches
    status, gap = compare_operator(
        row.operator,
        match.dumped.quantization,
        match.dumped.axis_order,
        tensor(match.event, buffer),
        reference[f"{sample}/{row.operator.index}"],
    )
    return OperatorComparison(operator=row.operator, sample=sample, status=status, gap=gap)


def _observer_effect(capture: Capture, shipping: Tensors, store: Store) -> float | None:
    """The worst SNR, in dB, of the debug program's final outputs against the shipping program's."""
    if capture.outputs_debug is None:
        return None
    debug = _read(store, capture.outputs_debug)
    found = [snr_db(answer, shipping[key]) for key, answer in debug.items()]
    return min((each for each in found if each is not None), default=None)


def _read(store: Store, blob: Blob) -> Tensors:
    return load(store.read(blob))


compare_task = stage(compare, version=1, cached=False)
