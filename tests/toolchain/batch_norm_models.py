"""Models with batch norms that torchao must not fold, and their preparation in a worker."""

from __future__ import annotations

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.batch_norms import is_written_as_convolution, with_own_convolutions
from tests.toolchain.wrong_kernels import trained


class Net(nn.Module):
    """A layer and two batch norms, called as the kind says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.layer: nn.Module = {
            "linear": lambda: nn.Linear(4, 4),
            "tied weight": lambda: nn.Linear(4, 4),
            "planes": lambda: nn.Conv1d(4, 4, 3, padding=1, bias=False),
            "volumes": lambda: nn.Conv3d(4, 4, 3, padding=1),
            "transposed in groups": lambda: nn.ConvTranspose2d(4, 4, 2, groups=2),
        }.get(kind, lambda: nn.Conv2d(4, 4, 3, padding=1, bias="without" not in kind))()
        of_vectors = dict.fromkeys(("linear", "tied weight", "planes"), nn.BatchNorm1d)
        norm = nn.BatchNorm3d if kind == "volumes" else of_vectors.get(kind, nn.BatchNorm2d)
        self.first = trained(norm(4))
        self.second = trained(norm(4, affine=kind != "planes"))

    @property
    def sample(self) -> torch.Tensor:
        sizes = {"linear": (), "tied weight": (), "planes": (6,), "volumes": (2, 3, 4)}.get(self.kind, (5, 6))
        return torch.randn(1, 4, *sizes, generator=torch.Generator().manual_seed(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        match self.kind:
            case "one weight, one of two calls":
                return self.first(y) + self.layer(x + 1)
            case "one weight, other batch norms" | "planes":
                return self.first(y) + self.second(self.layer(x + 1))
            case "one weight, one batch norm" | "one weight, one batch norm, without a bias":
                return self.first(y) + self.first(self.layer(x + 1))
            case "transposed in groups" | "folded":
                return self.first(y)
            case "two batch norms":
                return self.second(self.first(y))
            case "two batch norms, both read":
                return self.second(self.first(y)) + self.first(y) + y
            case "tied weight":
                return self.first(y) @ self.layer.weight  # type: ignore[operator]
        return self.first(y) + y


def prepared_with_and_without(kind: str) -> tuple[float, float, int]:
    """Return the largest differences from eager PyTorch of two graphs that torchao prepared: with own convolutions, and
    without; infinite if torchao raises an error. The last number is that of the own convolutions.
    """
    model = Net(kind).eval()
    scheme = SchemeConfig(name="x", quant_dtype="8a8w")
    with torch.no_grad():
        expected = model(model.sample)
        module = with_own_convolutions(_exported(model))
        written = sum(map(is_written_as_convolution, module.graph.nodes))
        compiler = backend_of("qnn").compiler(scheme, None)
        ours = prepare_pt2e(module, compiler.quantizer(scheme, module))(model.sample)
        try:
            module = _exported(model)
            theirs = prepare_pt2e(module, compiler.quantizer(scheme, module))(model.sample)
        except RuntimeError:
            theirs = torch.full_like(expected, torch.inf)
        return _distance(ours, expected), _distance(theirs, expected), written


def _exported(model: Net) -> torch.fx.GraphModule:
    return torch.export.export(model, (model.sample,), strict=True).module()  # type: ignore[return-value]


def _distance(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value - expected).abs().max())
