"""The functions of users: factories and data sources, which a configuration names."""

import contextlib
import hashlib
import importlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.user_files import file_of
from qnnsweep.tasks.errors import QnnsweepError, RequestError
from qnnsweep.tasks.models.torchvision_import import mend_torchvision

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
    if isinstance(module, torch.jit.ScriptModule):
        raise RequestError(
            f"model.factory={model.factory}: returned TorchScript, which torch.export cannot take apart; return the "
            "nn.Module that torch.jit was called with"
        )
    program = module if isinstance(module, torch.export.ExportedProgram) else None
    if program is not None:
        module = program.module()
        module.meta[EXPORTED] = program
    if not isinstance(module, torch.nn.Module):
        raise RequestError(f"model.factory={model.factory}: returned a {type(module).__name__}, not a torch.nn.Module")
    # The module that was compiled has the paths and the lines that its user knows.
    module = getattr(module, "_orig_mod", module)
    with contextlib.suppress(NotImplementedError):  # an exported program is for inference or for training, forever
        module.eval()
    return module


def imported(path: str, key: str) -> Callable[..., Any]:
    """Return the function that a configuration names at the key `key`. Raises RequestError if there is none.

    The function is named as `package.module:function`, or as `folder/file.py:function`.
    """
    mend_torchvision()
    module_name, _, attribute = path.rpartition(":")
    file = file_of(path)
    try:
        module = importlib.import_module(module_name) if file is None else _module_of_file(file)
        function = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        expected = _EXPECTED if file is None else f"expected {file.name}:function"
        raise RequestError(f"{key}={path}: {error}; {expected}") from error
    except Exception as error:  # importing runs a user's own code
        raise RequestError(f"{key}={path}: importing it raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RequestError(f"{key}={path}: is a {type(function).__name__}, not a function")
    return function


def _module_of_file(file: Path) -> ModuleType:
    """Import a file, once. Its name as a module is that of no other module, whatever the file is called."""
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    assert spec is not None, "the suffix is that of Python"
    assert spec.loader is not None, "the suffix is that of Python"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
