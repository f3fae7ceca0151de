"""Reference graphs that are written call by call, with their kernels and runs. Its functions run in workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue, NoDerivative
from qnnsweep.tasks.numerics.replay import replay

Array = NDArray[Any]
X = np.array([[1.0, -2.0, 3.0, 0.5], [2.0, 0.25, -1.0, 4.0]], np.float32)
HALF = np.full_like(X, 0.5)


def kernels_of(calls: Sequence[tuple[Any, ...]], inputs: Sequence[Array] = (X,), **constants: Array) -> Any:
    """Return the kernels of a graph whose last call is its output. A call is a target and its arguments."""
    import torch

    from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

    graph = ReferenceGraph(
        [Call(target=target, arguments=tuple(arguments), keywords={}, dtype=None) for target, *arguments in calls],
        [{"operator": len(calls) - 1}],
        {name: torch.from_numpy(value) for name, value in constants.items()},
    )
    return HostKernels(graph, inputs)


INPUT = {"input": 0}
FIRST, SECOND = {"operator": 0}, {"operator": 1}
DOUBLED = ("aten.mul.Scalar", INPUT, 2.0)


def reason_against(target: str, *arguments: Any) -> str:
    """Return why there is no derivative of a graph that doubles its input and calls `target`."""
    kernels = kernels_of([DOUBLED, (target, FIRST, *arguments)])
    try:
        kernels.between([X], {}, {0: HALF}, 0.5).gradients(0, np.ones_like(X))
    except NoDerivative as reason:
        return str(reason)
    return ""


def gradient() -> Array:
    """Return the derivative of the sum of squares halfway to an error of 0.5 before the square."""
    run = kernels_of([DOUBLED, ("aten.mul.Tensor", FIRST, FIRST)]).between([X], {}, {0: HALF}, 0.5)
    return run.gradients(0, np.ones_like(X))[0]


def with_unknown_constant() -> tuple[Any, Any, dict[int, str]]:
    """Compute with a constant that the host cannot compute: its value, its reader's, and the refusals."""
    calls = [("aten.relu.default", {"constant": "w"}), ("nolib.foo.default", FIRST), ("aten.add.Tensor", INPUT, SECOND)]
    kernels = kernels_of(calls, w=np.ones(4, np.float32))
    changed = kernels.changed_constants({0: np.full(4, 0.5, np.float32)})
    return sorted(changed), (kernels.call(1, {}), kernels.call(2, {})), kernels.refusals


def on_other_inputs() -> tuple[list[Array], tuple[dict[int, str], ...], bool]:
    """Compute with kernels, with those on other inputs, and with the former again.

    Return the values, the refusals of both, of which the latter fail once, and whether they share their constants.
    """
    calls = [("aten.relu.default", {"constant": "w"}), ("aten.add.Tensor", INPUT, FIRST)]
    first = kernels_of(calls, w=np.array([-1.0, 0.0, 1.0, 2.0], np.float32))
    second = first.on([-X])
    values = [kernels.call(1, {}) for kernels in (first, second, first)]
    third = second.on([np.ones(3, np.float32)])
    third.call(1, {})
    return values, (first.refusals, third.refusals), np.shares_memory(first.call(0, {}), third.call(0, {}))


def with_index_out_of_range() -> tuple[list[int], dict[int, str]]:
    """Replay a graph whose device logged an index that does not exist: the operators computed, and the refusals."""
    calls = [("aten.argmax.default", INPUT, 1), ("aten.embedding.default", {"constant": "w"}, FIRST)]
    kernels = kernels_of(calls, w=np.ones((4, 3), np.float32))
    logged = {0: np.array([2, 77]), 1: np.ones((2, 3), np.float32)}
    captured = {index: CapturedValue(elements=elements, qparams=None) for index, elements in logged.items()}
    return sorted(replay(DeviceRun(kernels, captured, {}), lambda *_: True)), kernels.refusals


def errors_under_a_mask_of_infinities() -> list[bool]:
    """Return, per operator of a masked softmax that rounds to float16, whether all errors are finite."""
    mask = np.array([0, 0, 0, -np.inf], np.float32)
    calls = [DOUBLED, ("aten.add.Tensor", FIRST, {"constant": "m"}), ("aten._softmax.default", SECOND, -1, False)]
    kernels = kernels_of(calls, m=mask)
    values: dict[int, Any] = {}
    for index in range(3):
        values[index] = (kernels.call(index, values) * np.float32(1.001)).astype(np.float16).astype(np.float32)
    captured = {index: CapturedValue(elements=value, qparams=None) for index, value in values.items()}
    replayed = replay(DeviceRun(kernels, captured, {}), lambda *_: False)
    return [bool(np.isfinite(error).all()) for index in range(3) for error in replayed[index].errors.values()]


def weights_as_read() -> dict[str, list[int]]:
    """Return the weights of a linear layer, behind a view, and of a norm, as a device with a limit reads them."""
    import torch

    from qnnsweep.tasks.records import Design
    from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph

    dequantize, view = "quantized_decomposed.dequantize_per_tensor.default", "aten.view_copy.default"
    scale: tuple[Any, ...] = ({"float": "0.5"}, 0, -32767, 32767, {"dtype": "int16"})
    calls = [
        (dequantize, {"constant": "weight"}, *scale),
        (view, {"operator": 0}, [2, 1]),
        ("aten.linear.default", {"input": 0}, {"operator": 1}),
        (dequantize, {"constant": "norm"}, *scale),
        ("aten.mul.Tensor", {"operator": 2}, {"operator": 3}),
    ]
    constants = {name: torch.tensor([-32767, 32767], dtype=torch.int16) for name in ("weight", "norm")}
    graph = ReferenceGraph(
        [Call(target=target, arguments=tuple(arguments), keywords={}, dtype=None) for target, *arguments in calls],
        [{"operator": 4}],
        constants,
    )
    design = Design(halves=(), merged=(), shared_biases=(), written=(), largest_weight=32639)
    return {name: tensor.tolist() for name, tensor in graph.as_read(design).constants.items()}
