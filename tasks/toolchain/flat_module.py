"""Modules whose `forward` takes and returns named tensors, although the user's `forward` has other structures.

The new module is a copy with another class, and not a wrapper around the module: the paths of its submodules, which
torch.export takes for the operators, are those of the user's module.
"""

import copy
import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.toolchain.samples import CallTemplate
from qnnsweep.tasks.toolchain.tensors import flat_outputs


def with_forward(
    module: torch.nn.Module, forward: Callable[..., Any], parameters: Sequence[inspect.Parameter] | None = None
) -> torch.nn.Module:
    """Return a module that has the parameters of `module`, and whose class has another `forward`.

    `parameters`: those that `forward` says it has, without `self`; None for those that it has.
    """
    if parameters is not None:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        forward.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    kind = type(module)
    changed = copy.copy(module)
    # A function of the instance would hide that of the class.
    changed.__dict__.pop(METHOD, None)
    # The class and not the instance has the function: torch.export takes the module paths of operators from the class.
    changed.__class__ = type(kind.__name__, (kind,), {METHOD: forward, "__module__": kind.__module__})
    return changed


def with_flat_inputs(module: torch.nn.Module, template: CallTemplate) -> torch.nn.Module:
    """Return a module that takes the inputs of `template` by position, and calls `forward` as the template says."""
    forward = forward_of(module)

    def flat(self: torch.nn.Module, *tensors: torch.Tensor) -> object:
        call = template.call(tensors)
        return forward(self, *call.args, **call.kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = _parameter_names([spec.name for spec in template.inputs])
    return with_forward(module, flat, [inspect.Parameter(name, kind) for name in names])


def with_flat_outputs(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module that returns the tensors of its answer as a dict, by their names."""
    forward = forward_of(module)

    def flat(self: torch.nn.Module, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        return flat_outputs(forward(self, *args, **kwargs))

    return with_forward(module, flat, parameters_of(module))


def parameters_of(module: torch.nn.Module) -> list[inspect.Parameter]:
    """Return the parameters of the module's `forward`, without `self`."""
    return [*inspect.signature(module.forward).parameters.values()]


def is_flattened(module: torch.nn.Module) -> bool:
    """Return whether `forward` is not the user's, but one that calls it."""
    return hasattr(type(module).forward, "__signature__")


def forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """Return the `forward` of a module as a function of the module and its arguments."""
    of_instance = vars(module).get(METHOD)
    if of_instance is None:
        return type(module).forward
    return lambda _, *args, **kwargs: of_instance(*args, **kwargs)


def _parameter_names(names: Sequence[str]) -> list[str]:
    """Return distinct names that parameters can have, as near to `names` as possible."""
    found: list[str] = []
    for number, name in enumerate(names):
        word = re.sub(r"\W", "_", name)
        if not word.isidentifier() or keyword.iskeyword(word):
            word = f"input_{word}"
        found.append(f"{word}_{number}" if word in (*found, "self") else word)
    return found
