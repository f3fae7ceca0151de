"""The error about a model whose optional extra is not installed, and the files of packages that hold only weights."""

import importlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

from qnnsweep.tasks.errors import RequestError


def missing_extra(model: str, extra: str, problem: object) -> RequestError:
    """Return the error that names the extra that a model needs. `problem`: what is missing."""
    return RequestError(f"model {model} needs the optional extra {extra} ({problem}): pip install 'qnnsweep[{extra}]'")


def extra_package(package: str, model: str) -> ModuleType:
    """Import a package of the extra `zoo`. Raises RequestError that says what to install if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing_extra(model, "zoo", f"{package}: {error}") from error


def packaged_file(package: str, file: str, model: str, extra: str) -> Path:
    """Return a file of an installed package without importing it. Raises RequestError if it is not installed."""
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError as error:
        raise missing_extra(model, extra, f"the package {package} is not installed") from error
    if not path.is_file():
        raise missing_extra(model, extra, f"the installed version of {package} has no file {file}")
    return path
