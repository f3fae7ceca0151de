"""The arithmetic of a captured sample, and the errors at values that were not logged, as the replay found them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import numpy as np

from qnnsweep.tasks.numerics.arithmetic import Arithmetic
from qnnsweep.tasks.numerics.dequantize import on_grid
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.records.vocabulary import Cause

_HALF: Literal["half"] = "half"
Rounding = Quantization | Literal["half"]
"""How a value is rounded: to a grid, or to float16."""


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
    departures = {index: operator.departure for index, operator in replayed.items() if operator.departure is not None}
    rounded: dict[int, Rounding] = {**inputs, **dict.fromkeys(half_inputs, _HALF), **dict(_roundings(captured))}
    others = {reader for reader, _ in (*merged, *run.requantized)}.union(departures)
    for index in _repeated(run, rounded, others):
        del rounded[index]
    return Arithmetic(
        grids={index: rounding for index, rounding in rounded.items() if isinstance(rounding, Quantization)},
        halves=frozenset(index for index, rounding in rounded.items() if rounding == _HALF),
        conversions={pair: value.qparams for pair, value in run.requantized.items() if value.qparams is not None},
        conversion_departures={pair: error for pair, error in _conversion_departures(run) if error.any()},
        merged=frozenset(merged),
        float_weights=floats.weights,
        float_biases=floats.biases,
        departures=departures,
        unrounded_departures={
            index: unrounded - run.on_host[index]
            for index, unrounded in run.unrounded.items()
            if not np.array_equal(unrounded, run.on_host[index])
        },
    )


def _roundings(captured: Mapping[int, CapturedValue]) -> Iterator[tuple[int, Rounding]]:
    for index, value in captured.items():
        if value.half:
            yield index, _HALF
        elif value.qparams is not None:
            yield index, value.qparams


def _repeated(run: DeviceRun, rounded: Mapping[int, Rounding], others: Collection[int]) -> list[int]:
    """Return the operators whose rounding changes nothing: they only move elements that are rounded in this way.

    The rounding is a decision about the first of these values alone: a run that leaves its error out must not have the
    error at the next value. `others`: operators that read other values than those that are rounded, or depart.
    """
    kernels, repeated = run.kernels, list[int]()
    carried: dict[int, Rounding | None] = {**rounded}
    of_inputs = {rounding for index, rounding in rounded.items() if index < 0}
    for index in sorted(kernels.data_movement_ops.difference(others)):
        read: set[Rounding | None] = {carried.get(source) for source in kernels.sources[index]}
        if index not in rounded:
            carried[index] = read.pop() if len(read) == 1 else None
            continue
        if not read and rounded[index] in of_inputs:  # it moves an input of the model
            read.add(rounded[index])
        value, on_host = run.values.get(index), run.on_host.get(index)
        if read == {rounded[index]} and isinstance(value, np.ndarray) and on_host is not None:
            repeated += [index] if np.array_equal(value, on_host, equal_nan=True) else []
    return repeated


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
