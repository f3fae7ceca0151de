"""The functions of users: factories and data sources, which a configuration names."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.user_files import file_of
from qnnsweep.tasks.errors import QnnsweepError, RequestError
from qnnsweep.tasks.models.user_function import named

EXPORTED = "exported_program"
"""The key of a module's `meta` with the exported program that the factory returned."""
_EXPECTED = "expected package.module:function, importable here"


def created_module(model: ModelConfig) -> torch.nn.Module:
    """Call the factory of a model. Raises RequestError if it fails, or returns no module and no exported program."""
    factory = imported(model.factory, "model.factory")
    try:
        module = factory(**model.arguments)
    except QnnsweepError:
        raise
    except Exception as error:  # a user's own code may raise anything
        raise RequestError(f"model.factory={model.factory}: {type(error).__name__}: {error}") from error
    module = usable_module(module, f"model.factory={model.factory}: returned")
    with contextlib.suppress(NotImplementedError):  # an exported program is for inference or for training, forever
        module.eval()
    return module


def usable_module(given: object, where: str) -> torch.nn.Module:
    """Return a module, or that of an exported program. `where`: the beginning of an error, such as `model: is`.

    Raises RequestError for everything else.
    """
    if isinstance(given, torch.jit.ScriptModule):
        raise RequestError(
            f"{where} TorchScript, which torch.export cannot take apart; use the nn.Module that torch.jit was "
            "called with"
        )
    if isinstance(given, torch.export.ExportedProgram):
        module = given.module()
        module.meta[EXPORTED] = given
        return module
    if not isinstance(given, torch.nn.Module):
        raise RequestError(f"{where} a {type(given).__name__}, not a torch.nn.Module")
    if bare := [key for key, value in [*given.named_parameters(), *given.named_buffers()] if value.is_meta]:
        raise RequestError(
            f"{where} a module without the values of {bare[0]}{f' and {len(bare) - 1} more' if bare[1:] else ''}: they "
            "are on the device meta; create it on the CPU, or load its weights with assign=True"
        )
    # The module that was compiled has the paths and the lines that its user knows.
    return getattr(given, "_orig_mod", given)


def imported(path: str, key: str) -> Callable[..., Any]:
    """Return the function that a configuration names at the key `key`. Raises RequestError if there is none.

    The function is named as `package.module:function`, or as `folder/file.py:function`.
    """
    try:
        function = named(path)
    except (ImportError, AttributeError) as error:
        file = file_of(path)
        expected = _EXPECTED if file is None else f"expected {file.name}:function"
        raise RequestError(f"{key}={path}: {error}; {expected}") from error
    except Exception as error:  # importing runs a user's own code
        raise RequestError(f"{key}={path}: importing it raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RequestError(f"{key}={path}: is a {type(function).__name__}, not a function")
    return function
