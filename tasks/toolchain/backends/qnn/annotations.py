"""How values are quantized, as the annotations of torchao's quantizers say it."""

from collections.abc import Sequence

import torch
from torch.fx import Node
from torchao.quantization.pt2e.observer import FixedQParamsObserver
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY


def annotation_of(node: Node) -> QuantizationAnnotation:
    """Return what the quantizer annotated at the node; an empty annotation if there is none."""
    return node.meta.get(Q_ANNOTATION_KEY) or QuantizationAnnotation()


def result_spec(node: Node) -> QuantizationSpec | None:
    """Return how the node's result is quantized; None if it is not quantized."""
    return _observed(node)[1]


def origin(node: Node) -> Node:
    """Return the value from whose observer the node's result has its grid: the node itself, or one before it."""
    return _observed(node)[0]


def _observed(node: Node) -> tuple[Node, QuantizationSpec | None]:
    """Return the value at the end of the chain of shared grids that begins at the node's result, and its grid."""
    spec: QuantizationSpecBase | None = annotation_of(node).output_qspec
    while isinstance(spec, SharedQuantizationSpec):
        shared = spec.edge_or_node
        if isinstance(shared, tuple):
            node, spec = shared[0], annotation_of(shared[1]).input_qspec_map.get(shared[0])
        else:
            node, spec = shared, annotation_of(shared).output_qspec
    return node, spec if isinstance(spec, QuantizationSpec) else None


def on_range(spec: QuantizationSpec, limits: Sequence[float]) -> QuantizationSpec:
    """Return the specification of a grid of the same dtype from the smallest to the largest of `limits`."""
    info = torch.iinfo(spec.dtype)
    least = info.min if spec.quant_min is None else spec.quant_min
    most = info.max if spec.quant_max is None else spec.quant_max
    smallest, largest = limits
    scale = (largest - smallest) / (most - least)
    return QuantizationSpec(
        dtype=spec.dtype,
        quant_min=least,
        quant_max=most,
        qscheme=torch.per_tensor_affine,
        observer_or_fake_quant_ctr=FixedQParamsObserver.with_args(
            scale=scale, zero_point=least - round(smallest / scale)
        ),
    )
