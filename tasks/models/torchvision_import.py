"""torchvision, also where its compiled part does not load: a CUDA build beside the CPU build of torch.

Then its import ends at the first operator without a schema; and transformers, which imports torchvision when it is
installed, loses most of its models with it. The models need none of those operators.
"""

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

_schemas: list[torch.library.Library] = []  # torch forgets a schema whose Library is collected


@cache
def torchvision() -> ModuleType | None:
    """The package, or None where it is not installed."""
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _schemas.append(library)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")
