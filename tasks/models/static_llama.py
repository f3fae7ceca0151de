"""ExecuTorch's static llama, which is part of its examples and imports more than it needs."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import nn

from qnnsweep.tasks.models.torchvision_import import torchvision
from qnnsweep.tasks.records.keys import METHOD

HIDDEN = -255.0
"""The mask's value for a position that a token must not see, as ExecuTorch's runner has it."""


def static_llama_classes() -> tuple[Any, Any, Any, Any]:
    """Return the classes LlamaModel, MultiScopeAwareLlamaModel, ModelArgs and ActFn of ExecuTorch's examples."""
    torchvision()  # ExecuTorch's examples import torchvision, which may need a repair first
    with _torchtune_if_missing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the packages that the examples import
        from executorch.examples.models.llama.model_args import ActFn
        from executorch.examples.qualcomm.oss_scripts.llama.model import static_llama
    return static_llama.LlamaModel, static_llama.MultiScopeAwareLlamaModel, static_llama.ModelArgs, ActFn


def as_convolutions(model: Any) -> Any:
    """Return the model with convolutions of 1×1 instead of linear layers, as ExecuTorch's scripts compile it."""
    from executorch.backends.qualcomm.utils.utils import convert_linear_to_conv2d

    for layer in model.layers:
        if layer.attention.attn_logit_softcapping is None:  # the static llama's convolutions do not cap the scores
            layer.attention.prepare_attention_conv()
        layer.feed_forward.prepare_feedforward_conv()
        _call_by_class(layer.attention)
        _call_by_class(layer.feed_forward)
    return convert_linear_to_conv2d(model)


def _call_by_class(module: nn.Module) -> None:
    """Make an attribute `forward` of a module a method of its class, because it would be in the modules' paths."""
    forward: Any = module.__dict__.pop(METHOD, None)
    module.__dict__.pop("forward_no_conv", None)
    if forward is not None:
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {METHOD: forward.__func__, "__module__": kind.__module__})


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A stand-in for torchtune, which ExecuTorch's llama imports only to convert checkpoints."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:  # noqa: ARG002
        if fullname.partition(".")[0] != "torchtune":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _made_up  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _made_up(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


@contextmanager
def _torchtune_if_missing() -> Iterator[None]:
    """Let torchtune be imported in this context, and forget the stand-in after it."""
    if importlib.util.find_spec("torchtune") is not None:
        yield
        return
    finder = _StandIn()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchtune"]:
            del sys.modules[name]
