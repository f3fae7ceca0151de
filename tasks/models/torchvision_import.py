"""The import of torchvision, even if its compiled part cannot be loaded (a CUDA build with a CPU build of torch).

In this case, `import torchvision` fails at the first operator without a schema. The import of most models of
transformers fails too, because transformers imports torchvision if it is installed. After `mend_torchvision`, an import
that fails defines the missing schemas and goes on. The operators with these schemas cannot be called.
"""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

import torch

_NAME = "torchvision"
_schemas: list[torch.library.Library] = []  # torch removes a schema when its Library is garbage-collected


def mend_torchvision() -> None:
    """Make later imports of torchvision define the schemas that it lacks. Nothing is imported now."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def torchvision() -> ModuleType | None:
    """Import and return the package torchvision, or return None if torchvision is not installed."""
    mend_torchvision()
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(_NAME)
    return None


class _Finder(MetaPathFinder):
    """Finds torchvision where Python finds it, and no other module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _NAME else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except RuntimeError as error:
            if f"{_NAME}::" not in str(error):
                raise
            _define_schemas()
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
            super().exec_module(module)


def _define_schemas() -> None:
    library = torch.library.Library(_NAME, "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _schemas.append(library)
