"""Functions of the user that yield samples: `package.module:function`, or `FILE.py:function` with a path."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from qnnsweep.conf.errors import printable
from qnnsweep.tasks.errors import RequestError


def user_function(place: str) -> Callable[..., Any]:
    """Return the function that a place names. Raises RequestError if there is none."""
    module, _, name = place.rpartition(":")
    try:
        function = getattr(_of_file(Path(module)) if module.endswith(".py") else importlib.import_module(module), name)
    except Exception as error:  # importing runs a user's own code
        problem = f"cannot be imported: {type(error).__name__}: {printable(error)}"
        raise RequestError(problem, key="samples", value=printable(place)) from error
    if not callable(function):
        raise RequestError(f"a {type(function).__name__}, not a function", key="samples", value=printable(place))
    return function


def _of_file(file: Path) -> ModuleType:
    """Return the module of a file. A module that was imported under its name is not imported again."""
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None, "the ending is .py"
    assert spec.loader is not None, "so is its loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
