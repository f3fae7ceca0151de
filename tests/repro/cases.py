"""Cases of `qnnsweep.tasks.repro` without a device: a graph of four operators, and what a device would have logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.records import Operator, Quantization

if TYPE_CHECKING:
    from qnnsweep.tasks.repro.case import Case
    from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph

GRID = Quantization(scale=(0.5,), zero_point=(10,), axis=None, quant_min=0, quant_max=255, dtype="uint8")


def operator(
    index: int, name: str, target: str, *, constant: bool = False, shape: tuple[int, ...] | None = (4,)
) -> Operator:
    return Operator(
        index=index,
        name=name,
        target=target,
        debug_handle=index,
        output_index=0,
        source_nodes=(),
        module_path="",
        stack_trace="",
        shape=shape,
        dtype="float32",
        quantization=None if constant else GRID,
        axis_order=None,
        subgraph=0,
        constant=constant,
        unused=False,
    )


def case(target: str = "aten.mul.Tensor", error: float = 8.0) -> Case:
    """Return a case: weight = dequantized int32 constant; scaled = input * weight; clamped; total = clamped + scaled.

    The device is wrong at `scaled`, by `error` steps at its first element.
    """
    import torch

    from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph

    def call(target: str, *arguments: object) -> Call:
        return Call(target=target, arguments=arguments, keywords={}, dtype="float32")

    dequantize = "quantized_decomposed.dequantize_per_tensor.default"
    ends = ({"float": "0.25"}, 0, -(2**31), 2**31 - 1, {"dtype": "int32"})
    calls = [
        call(dequantize, {"constant": "bias"}, *ends),
        call(target, {"input": 0}, {"operator": 0}),
        call("aten.hardtanh.default", {"operator": 1}, {"float": "0.0"}, {"float": "6.0"}),
        call("aten.add.Tensor", {"operator": 2}, {"operator": 1}),
    ]
    graph = ReferenceGraph(calls, [{"operator": 3}], {"bias": torch.tensor([4, 8, 12, -(2**31)], dtype=torch.int32)})
    names = ("dequantized", "aten_mul_tensor", "aten_hardtanh_default", "aten_add_tensor")
    operators = tuple(
        operator(index, name, calls[index].target, constant=index == 0) for index, name in enumerate(names)
    )
    right, after = (12, 18, 28, 10), (12, 18, 22, 10)
    return wrong_at(1, graph, operators, {1: (12 + int(error), *right[1:]), 2: after, 3: after}, right, error)


def wrong_at(
    index: int,
    graph: ReferenceGraph,
    operators: tuple[Operator, ...],
    codes: Mapping[int, Sequence[int]],
    right: Sequence[int],
    error: float,
) -> Case:
    """Return the case of an operator. `codes`: what the device logged, by operator. `right`: the operator's codes."""
    from qnnsweep.tasks.repro.case import Case
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

    def captured(values: Sequence[int]) -> CapturedValue:
        return CapturedValue(elements=np.array(values, np.uint8), qparams=GRID)

    inputs = (np.array([1.0, 2.0, 3.0, 0.0], np.float32),)
    logged = {number: captured(values) for number, values in codes.items()}
    return Case(
        operator=operators[index],
        operators=operators,
        graph=graph,
        run=DeviceRun(HostKernels(graph, inputs), logged, {}),
        inputs=inputs,
        input_qparams=(GRID,),
        measured=logged[index],
        expected=captured(right),
        used=None,
        spans=(),
        error=error,
    )


def case_of_parts() -> Case:
    """Return a case: both halves of the input, of which the device multiplies the first by the second, and is wrong."""
    from qnnsweep.tasks.toolchain.nodes import GETITEM
    from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph

    calls = [
        Call(target=target, arguments=arguments, keywords={}, dtype="float32")
        for target, arguments in (
            ("aten.split_with_sizes_copy.default", ({"input": 0}, [2, 2])),
            (GETITEM, ({"operator": 0}, 0)),
            (GETITEM, ({"operator": 0}, 1)),
            ("aten.mul.Tensor", ({"operator": 1}, {"operator": 2})),
        )
    ]
    names = ("aten_split_with_sizes_copy_default", "getitem", "getitem_1", "aten_mul_tensor")
    operators = tuple(
        operator(index, name, calls[index].target, shape=None if index == 0 else (2,))
        for index, name in enumerate(names)
    )
    graph = ReferenceGraph(calls, [{"operator": 3}], {})
    return wrong_at(3, graph, operators, {1: (12, 14), 2: (16, 10), 3: (24, 10)}, (16, 10), 8.0)
