"""The comparison of the debug program's final outputs with the logged values of their producers.

This module runs in worker processes, because it moves logged values as the operators behind them do.
"""

from collections.abc import Iterator, Mapping, Sequence

from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.numerics.bindings import Bound, Others, check_bindings, differs
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue, Kernels
from qnnsweep.tasks.records import IoCheck, LoweredMethod
from qnnsweep.tasks.records.keys import tensor_key

Captured = Mapping[int, CapturedValue]


def sample_bindings(
    lowered: LoweredMethod,
    evidence: Evidence,
    kernels: Kernels,
    sample: int,
    captured: Captured,
    reference: Sequence[Array],
    shipped: Sequence[Array],
) -> Iterator[IoCheck]:
    """Yield one result per final output that an operator computes. `captured`: the logged values of the sample.

    `reference`, `shipped`: the final outputs of eager PyTorch and of the shipping program.
    """
    producers = {number: index for number, index in enumerate(kernels.results) if index is not None}
    bound: dict[int, Bound] = {
        number: Bound(
            name=lowered.exported.outputs[number].name,
            producer=lowered.operators[index].name,
            output=evidence.debug_outputs[tensor_key(sample, number)],
            logged=_logged(kernels, index, captured),
            shipped=shipped[number],
            reference=reference[number],
        )
        for number, index in producers.items()
        if tensor_key(sample, number) in evidence.debug_outputs
    }
    earlier = [before for before in reversed(evidence.samples) if before < sample]
    others = {
        position: Others(
            earlier=[
                value
                for before in earlier
                if (value := _logged(kernels, producers[number], evidence.captured_values(before))) is not None
            ],
            operators={
                lowered.operators[index].name: _real(value)
                for index, value in captured.items()
                if value.elements.size == bound[number].output.size and index != producers[number]
            },
        )
        for position, number in enumerate(bound)
        if differs(bound[number])
    }
    yield from check_bindings(sample, list(bound.values()), others)


def _logged(kernels: Kernels, index: int, captured: Captured) -> Array | None:
    """Return the value of a call: the logged one, or that of the call that it moves. None if neither was logged."""
    if index in captured:
        return _real(captured[index])
    sources = [source for source in kernels.sources[index] if source not in kernels.constants]
    if index not in kernels.data_movement_ops or not sources:
        return None
    values = {source: _logged(kernels, source, captured) for source in sources}
    known = {source: value for source, value in values.items() if value is not None}
    value = kernels.call(index, known) if len(known) == len(values) else None
    return None if isinstance(value, tuple) else value


def _real(value: CapturedValue) -> Array:
    return value.elements if value.qparams is None else value.dequantized()
