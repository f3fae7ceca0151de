"""Cases of `qnnsweep.tasks.repro` without a device: a graph of four operators, and what a device would have logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.records import Operator, Quantization

if TYPE_CHECKING:
    from qnnsweep.tasks.repro.case import Case

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

    from qnnsweep.tasks.repro.case import Case
    from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

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
    inputs = (np.array([1.0, 2.0, 3.0, 0.0], np.float32),)
    kernels = HostKernels(graph, inputs)
    right = np.array([12.0, 18.0, 28.0, 10.0])
    wrong = right + np.array([error, 0.0, 0.0, 0.0])
    measured = CapturedValue(elements=wrong.astype(np.uint8), qparams=GRID)
    after = CapturedValue(elements=np.array([12, 18, 22, 10], np.uint8), qparams=GRID)
    run = DeviceRun(kernels, {1: measured, 2: after, 3: after}, {})
    return Case(
        operator=operators[1],
        operators=operators,
        graph=graph,
        run=run,
        inputs=inputs,
        input_qparams=(GRID,),
        measured=measured,
        expected=CapturedValue(elements=right.astype(np.uint8), qparams=GRID),
        used=None,
        spans=(),
        error=error,
    )


def case_of_parts() -> Case:
    """Return a case: both halves of the input, of which the device multiplies the first by the second, and is wrong."""
    from qnnsweep.tasks.repro.case import Case
    from qnnsweep.tasks.toolchain.nodes import GETITEM
    from qnnsweep.tasks.toolchain.reference.graph import Call, ReferenceGraph
    from qnnsweep.tasks.toolchain.reference.kernels import HostKernels

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
    inputs = (np.array([1.0, 2.0, 3.0, 0.0], np.float32),)
    codes = {1: [12, 14], 2: [16, 10], 3: [24, 10]}
    captured = {
        index: CapturedValue(elements=np.array(value, np.uint8), qparams=GRID) for index, value in codes.items()
    }
    graph = ReferenceGraph(calls, [{"operator": 3}], {})
    return Case(
        operator=operators[3],
        operators=operators,
        graph=graph,
        run=DeviceRun(HostKernels(graph, inputs), captured, {}),
        inputs=inputs,
        input_qparams=(GRID,),
        measured=captured[3],
        expected=CapturedValue(elements=np.array([16, 10], np.uint8), qparams=GRID),
        used=None,
        spans=(),
        error=8.0,
    )
