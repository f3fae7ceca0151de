"""The rounding errors of a lowered model's weights, also in steps of their grids. Runs in a worker."""

from __future__ import annotations

import numpy as np

from qnnsweep.tasks.comparison.weights import WeightErrors, weight_errors
from qnnsweep.tasks.numerics.element_use import Array, Kernels
from qnnsweep.tasks.records import Blob, LoweredProgram
from qnnsweep.tasks.storage.store import Store


def errors(lowered: LoweredProgram, store: Store) -> WeightErrors:
    return weight_errors(lowered.methods[0], store, _kernels(lowered, store))


def _kernels(lowered: LoweredProgram, store: Store) -> Kernels:
    from qnnsweep.tasks.toolchain.entrypoints import reference_kernels

    return reference_kernels(lowered.methods[0], store)([])


def largest_in_steps(lowered: LoweredProgram, store: Store) -> list[tuple[str, int, float]]:
    """Return, per operator that dequantizes a constant: its target, the number of axes, the largest error in steps.

    The part of an error that float32 explains is left out. An int32 bias can have more than 2**24 steps, which float32
    does not tell apart.
    """
    by_operator, steps, kernels = errors(lowered, store).by_operator, _steps(lowered, store), _kernels(lowered, store)
    assert set(by_operator) == set(steps)
    largest: list[tuple[str, int, float]] = []
    for index, step in steps.items():
        operator, error = lowered.methods[0].operators[index], np.abs(by_operator[index])
        explained = np.abs(np.asarray(kernels.call(index, {}))) * 2.0**-22
        largest.append((operator.target, error.ndim, float((np.maximum(error - explained, 0) / step).max())))
    return largest


def held_and_read(program: Blob, store: Store) -> tuple[set[str], set[str]]:
    """Return the names of the tensors that a program holds, and of those that its graph reads."""
    from qnnsweep.tasks.toolchain.saved_program import load_program

    loaded = load_program(store, program)
    read = {spec.target for spec in loaded.graph_signature.input_specs if spec.target is not None}
    return {*loaded.state_dict, *loaded.constants}, read


def _steps(lowered: LoweredProgram, store: Store) -> dict[int, Array]:
    """Return, per operator that dequantizes a constant, the step of each element's grid, from the operator's call."""
    from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph

    graph = read_graph(store, lowered.methods[0].reference_calls, lowered.methods[0].reference_constants)
    steps: dict[int, Array] = {}
    for operator in filter(lambda row: row.constant and row.shape is not None, lowered.methods[0].operators):
        arguments = graph.calls[operator.index].arguments
        match operator.target.split("."), operator.shape:
            case [_, "dequantize_per_tensor", _], shape:
                steps[operator.index] = np.full(shape or (), float(arguments[1]["float"]))
            case [_, "dequantize_per_channel", _], tuple(shape):
                scale, axis = graph.constants[arguments[1]["constant"]].numpy(), arguments[3]
                steps[operator.index] = scale.reshape([-1 if place == axis else 1 for place in range(len(shape))])
            case [_, "dequantize_affine", _], tuple(shape):
                block = arguments[1]
                scale = graph.constants[arguments[2]["constant"]].numpy()
                scale = scale.reshape([size // part for size, part in zip(shape, block, strict=True)])
                for axis, part in enumerate(block):
                    scale = np.repeat(scale, part, axis)
                steps[operator.index] = scale
            case _:
                pass
    return steps
