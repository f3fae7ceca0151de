"""Functions of the user in files, and those that yield samples: `package.module:function` or `FILE.py:function`."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from qnnsweep.conf.errors import printable
from qnnsweep.conf.user_files import file_of
from qnnsweep.tasks.errors import RequestError, raise_shortage


def user_function(place: str) -> Callable[..., Any]:
    """Return the function that a place names. Raises RequestError if there is none."""
    try:
        function = named(place)
    except Exception as error:  # importing runs a user's own code
        raise_shortage(error)
        problem = f"cannot be imported: {type(error).__name__}: {printable(error)}"
        raise RequestError(problem, key="samples", value=printable(place)) from error
    if not callable(function):
        raise RequestError(f"a {type(function).__name__}, not a function", key="samples", value=printable(place))
    return function


def named(place: str) -> Any:
    """Import what `package.module:name` or `folder/file.py:name` names. Raises whatever the user's code raises."""
    module_name, _, name = place.rpartition(":")
    file = file_of(place)
    module = importlib.import_module(module_name) if file is None else _module_of_file(file)
    if not hasattr(module, name):
        known = module_name if file is None else file.stem
        raise AttributeError(f"module {known!r} has no attribute {name!r}")
    return getattr(module, name)


def _module_of_file(file: Path) -> ModuleType:
    """Import a file, once. A module that was imported from it under its own name is not imported again.

    Otherwise its name as a module is that of no other module, whatever the file is called.
    """
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
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
