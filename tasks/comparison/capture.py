"""The comparison of one capture with its references: final outputs rung by rung, operators sample by sample.

This module runs in a worker process, because it computes operators again with PyTorch.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load

from tasks.comparison.evidence import Evidence
from tasks.comparison.metrics import Pair, compute_metrics, metric_template
from tasks.comparison.operators import OperatorComparer
from tasks.comparison.profile import profiled_events
from tasks.numerics.io_check import check_io
from tasks.numerics.metrics import snr_db, top1
from tasks.numerics.operators import compare_values
from tasks.records import Blob, Capture, Comparison, LoweredProgram, OutputComparison
from tasks.records.keys import tensor_key
from tasks.records.options import ComparisonOptions
from tasks.records.vocabulary import RUNGS, Rung
from tasks.storage.store import Store

Array = NDArray[Any]
Tensors = Mapping[str, Array]
"""Tensors by the key `<sample>/<output index>` or `<sample>/<operator index>`."""


def compare_capture(lowered: LoweredProgram, capture: Capture, options: ComparisonOptions, store: Store) -> Comparison:
    """Compare final outputs with eager PyTorch, and operators with the edge graph and `options.references`.

    Raises EvidenceError if the capture does not agree with its record, and RequestError if a metric of
    `options.metrics` cannot be loaded.
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
    comparer = OperatorComparer(lowered, evidence, options, eager, rungs["device"], store) if evidence else None
    samples = tuple(comparer.samples()) if comparer else ()
    pairs = chain(_output_pairs(lowered, rungs, eager), *(sample.pairs for sample in samples))
    return Comparison(
        outputs=tuple(_compare_outputs(lowered, rungs, eager, options.classifier)),
        operators=tuple(row for sample in samples for row in sample.operators),
        metrics=compute_metrics(options.metrics, tuple(pairs)) if options.metrics else (),
        io_checks=check_io(exported, eager, _read(store, exported.mistaken_outputs), rungs["device"]),
        profile=profiled_events(lowered, capture, store=store),
        observer_effect_snr_db=_observer_effect(capture, rungs["device"], store),
        unexpected_events=evidence.unexpected if evidence else (),
        other_references=tuple(row for sample in samples for row in sample.other_references),
        budget=tuple(comparer.budget()) if comparer else (),
    )


def _compare_outputs(
    lowered: LoweredProgram, rungs: Mapping[Rung, Tensors], eager: Tensors, classifier: bool
) -> Iterator[OutputComparison]:
    exported = lowered.quantized.exported
    previous: Rung | None = None
    for rung in RUNGS:
        for sample, name in enumerate(exported.sample_names):
            for index, output in enumerate(exported.outputs):
                key = tensor_key(sample, index)
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
                    previous_rung=previous,
                    previous_snr_db=compare_values(actual, rungs[previous][key]).gap.snr_db if previous else None,
                    label=exported.labels[sample],
                    top1_reference=top1(reference) if classifier else None,
                    top1_actual=top1(actual) if classifier else None,
                )
        previous = rung


def _output_pairs(lowered: LoweredProgram, rungs: Mapping[Rung, Tensors], eager: Tensors) -> Iterator[Pair]:
    exported = lowered.quantized.exported
    for rung, outputs in rungs.items():
        for sample, index in product(range(len(exported.sample_names)), range(len(exported.outputs))):
            key = tensor_key(sample, index)
            subject = metric_template(None, index, sample, rung, "eager")
            yield Pair(subject=subject, actual=outputs[key], reference=eager[key], qparams=None)


def _observer_effect(capture: Capture, shipping: Tensors, store: Store) -> float | None:
    """Return the lowest SNR, in dB, of the debug program's final outputs relative to those of the shipping program."""
    if capture.outputs_debug is None:
        return None
    debug = _read(store, capture.outputs_debug)
    ratios = [snr_db(output, shipping[key]) for key, output in debug.items()]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _read(store: Store, blob: Blob) -> Tensors:
    return load(store.read(blob))
