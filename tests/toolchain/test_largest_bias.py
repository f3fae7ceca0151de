"""The largest bias of a layer whose weight has one scale: it has the right sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride
from qnnsweep.tasks.toolchain.backends.select import backend_of

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]  # torch and ExecuTorch warn at import


@pytest.mark.parametrize("dtype", ["8a8w", "16a8w", "16a16w"])
def test_the_largest_bias_does_not_overflow(dtype: str, resources: Resources) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    assert resources.workers, "they set the paths of QNN"
    with torch.no_grad():
        layer = nn.Conv2d(1, 2, 1)
        layer.weight.copy_(torch.tensor([0.5, -1.0]).reshape(2, 1, 1, 1))
        assert layer.bias is not None
        layer.bias.copy_(torch.tensor([28.197839736938477, -3.0]))
        inputs = (torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8),)
        module = torch.export.export(layer.eval(), inputs, strict=True).module()
        override = SchemeOverride(operator="conv2d", quant_dtype=dtype, per_channel=False)
        asked = SchemeConfig(name="mixed", quant_dtype="8a8w", overrides=[override])
        prepared = prepare_pt2e(module, backend_of("qnn").compiler(asked, None).quantizer(asked, module))
        prepared(*inputs)
        wrong = (convert_pt2e(prepared)(*inputs) - layer(*inputs)).abs().max()
    assert float(wrong) < 0.2, "with the other sign of the bias, it would be 28 or more"
