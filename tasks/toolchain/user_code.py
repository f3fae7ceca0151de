"""The functions of users: factories and data sources, which a configuration names."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from qnnsweep.conf.models import ModelConfig
from qnnsweep.tasks.errors import QnnsweepError, RequestError


def created_module(model: ModelConfig) -> torch.nn.Module:
    """Call the factory of a model. Raises RequestError if it fails, or returns no module."""
    factory = imported(model.factory, "model.factory")
    try:
        module = factory(**model.arguments)
    except QnnsweepError:
        raise
    except Exception as error:  # a user's own code may raise anything
        raise RequestError(f"model.factory={model.factory}: {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise RequestError(f"model.factory={model.factory}: returned a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def imported(path: str, key: str) -> Callable[..., Any]:
    """Return the function that a configuration names as `package.module:function`, at the key `key`."""
    module_name, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"{key}={path}: {error}; expected package.module:function, importable here") from error
    except Exception as error:  # importing runs a user's own code
        raise RequestError(f"{key}={path}: importing it raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RequestError(f"{key}={path}: is a {type(function).__name__}, not a function")
    return function
