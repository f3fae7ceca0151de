"""A convolution and a batch norm, and their conversion in a worker."""

from __future__ import annotations

import torch
from torch import nn

SAMPLE = (torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)


class Net(nn.Module):
    """A convolution and a batch norm. `between`: what is between the two."""

    def __init__(self, between: str = "relu") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        match self.between:
            case "relu":
                x = x.relu()
            case "division":
                x = x / self.norm.weight.reshape(1, -1, 1, 1)
            case "division and bias":
                x = x / self.norm.weight.reshape(1, -1, 1, 1) + self.conv.bias.reshape(1, -1, 1, 1)  # type: ignore[union-attr]
        return self.norm(x)


def exported(between: str) -> torch.fx.GraphModule:
    return torch.export.export(Net(between).eval(), SAMPLE, strict=True).module()  # type: ignore[return-value]


def calibrated() -> torch.fx.GraphModule:
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    quantizer = QnnQuantizer()
    quantizer.set_default_quant_config(QuantDtype.use_16a8w)
    prepared = prepare_pt2e(exported("relu"), quantizer)
    prepared(*SAMPLE)
    return prepared


def is_left_out(between: str) -> bool:
    """Return whether the context leaves the search for patterns out. The search must be there again behind it."""
    from torchao.quantization.pt2e import qat_utils

    from qnnsweep.tasks.toolchain.training_patterns import without_training_patterns

    search = qat_utils.replace_pattern_with_filters
    with without_training_patterns(exported(between)):
        left_out = qat_utils.replace_pattern_with_filters is not search
    assert qat_utils.replace_pattern_with_filters is search
    return left_out


def compare_conversions() -> None:
    """Raise AssertionError if the graph without the search is not the one that torchao converts."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    from qnnsweep.tasks.toolchain.training_patterns import without_training_patterns

    with without_training_patterns(ours := calibrated()):
        quick = convert_pt2e(ours)
    whole = convert_pt2e(calibrated())
    assert any("batch_norm" in str(node.target) for node in quick.graph.nodes)
    assert str(quick.graph) == str(whole.graph)
    assert str(quick.code) == str(whole.code)
    torch.testing.assert_close(dict(quick.state_dict()), dict(whole.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(quick(*SAMPLE), whole(*SAMPLE), rtol=0, atol=0)
