"""The import of torchvision, even if its compiled part cannot be loaded (a CUDA build with a CPU build of torch).

In this case, `import torchvision` fails at the first operator without a schema. The import of most models of
transformers fails too, because transformers imports torchvision if it is installed. The function `torchvision`
therefore defines the missing schemas. The models here do not use the operators with these schemas.
"""

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

_schemas: list[torch.library.Library] = []  # torch removes a schema when its Library is garbage-collected


@cache
def torchvision() -> ModuleType | None:
    """Import and return the package torchvision, or return None if torchvision is not installed."""
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
