"""The arithmetic of a captured sample, and the errors at values that were not logged, as the replay found them."""

from collections.abc import Iterator, Mapping

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import Arithmetic
from qnnsweep.tasks.numerics.dequantize import on_grid
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import Array
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.records.vocabulary import Cause


def arithmetic_of(
    replayed: Mapping[int, Replayed],
    run: DeviceRun,
    floats: FloatConstants,
    inputs: Mapping[int, Quantization],
    half_inputs: frozenset[int],
) -> Arithmetic:
    """Return the arithmetic of a captured sample: with all errors, its run gives the values that were logged.

    `inputs`, `half_inputs`: the grids of the model's inputs, and the inputs that are rounded to float16, by -1, -2, ….
    """
    sources, captured = run.kernels.sources, run.captured
    merged = {
        (reader, source)
        for index, operator in replayed.items()
        for source in operator.spans
        for reader in (index, *operator.spans)
        if source in sources[reader] and not (source in replayed and replayed[source].contradicted)
    }
    merged |= {
        (index, -1 - number)
        for index, operator in replayed.items()
        if operator.reads_exact_inputs
        for number in range(max((-least for least in (*inputs, *half_inputs)), default=0))
    }
    return Arithmetic(
        grids={**inputs, **{index: value.qparams for index, value in captured.items() if value.qparams is not None}},
        halves=half_inputs | {index for index, value in captured.items() if value.half},
        conversions={pair: value.qparams for pair, value in run.requantized.items() if value.qparams is not None},
        conversion_departures={pair: error for pair, error in _conversion_departures(run) if error.any()},
        merged=frozenset(merged),
        float_weights=floats.weights,
        float_biases=floats.biases,
        departures={
            index: operator.departure for index, operator in replayed.items() if operator.departure is not None
        },
        unrounded_departures={
            index: unrounded - run.on_host[index]
            for index, unrounded in run.unrounded.items()
            if not np.array_equal(unrounded, run.on_host[index])
        },
    )


def _conversion_departures(run: DeviceRun) -> Iterator[tuple[tuple[int, int], Array]]:
    """Yield what the device computed beyond exact rounding in each conversion that was logged."""
    for pair, received in run.received.items():
        value, qparams = run.values.get(pair[1]), run.requantized[pair].qparams
        if isinstance(value, np.ndarray) and isinstance(received, np.ndarray) and qparams is not None:
            yield pair, received - on_grid(value, qparams)


def unlogged_errors(run: DeviceRun, floats: FloatConstants) -> dict[int, Mapping[Cause, Array]]:
    """Return the errors that rounded constants cause at operators whose values were not logged, by operator index."""
    kernels, errors = run.kernels, dict[int, Mapping[Cause, Array]]()
    for index in range(len(kernels.sources)):
        if index in run.captured or index in kernels.constants or not floats.are_read_by(kernels, index):
            continue
        rounded = run.call(index)
        if isinstance(rounded, np.ndarray) and rounded.dtype.kind == "f":
            errors[index] = floats.errors(run, index, rounded)
    return {index: parts for index, parts in errors.items() if parts}
