"""Functions that a configuration names: in a Python file, or in a module of the user's own."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from qnnsweep.conf.errors import RequestError, did_you_mean, printable
from qnnsweep.conf.models import DataConfig, MethodConfig, ModelConfig

SUFFIX = ".py"


def file_of(function: str) -> Path | None:
    """Return the file of `folder/file.py:function`; None for `package.module:function`."""
    file, _, _ = function.rpartition(":")
    return Path(file) if file.endswith(SUFFIX) else None


def with_absolute_files(model: ModelConfig, folders: Sequence[Path]) -> ModelConfig:
    """Return a model with the absolute paths of its files, because workers run in folders of their own.

    A path is relative to the working folder, or to one of `folders`. Raises RequestError if a file does not exist.
    """

    def of_data(data: DataConfig | None, key: str) -> DataConfig | None:
        return None if data is None else replace(data, source=_absolute(data.source, f"{key}.source", folders))

    def of_method(method: MethodConfig, key: str) -> MethodConfig:
        return replace(
            method,
            factory=method.factory and _absolute(method.factory, f"{key}.factory", folders),
            calibration=of_data(method.calibration, f"{key}.calibration"),
            evaluation=of_data(method.evaluation, f"{key}.evaluation"),
        )

    methods = model.methods
    return replace(
        model,
        factory=_absolute(model.factory, "model.factory", folders),
        calibration=of_data(model.calibration, "model.calibration"),
        evaluation=of_data(model.evaluation, "model.evaluation"),
        methods=methods and [of_method(method, f"model.methods[{index}]") for index, method in enumerate(methods)],
    )


def folders_of_files(model: ModelConfig) -> Iterator[Path]:
    """Yield the folders of a model's files, whose modules these files can import."""
    methods = model.methods or []
    splits = [split for part in (model, *methods) for split in (part.calibration, part.evaluation) if split]
    functions = [model.factory, *(method.factory or "" for method in methods), *(split.source for split in splits)]
    yield from (file.parent for function in functions if (file := file_of(function)))


def is_module(module: str, folders: Sequence[Path]) -> bool:
    """Return whether one of the folders, or Python, has the top-level package of a module. Nothing is imported."""
    top = module.partition(".")[0]
    if any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders):
        return True
    try:
        return find_spec(top) is not None
    except ValueError:  # `__main__`, which is another module in every process
        return False


def missing(function: str, folders: Sequence[Path]) -> str | None:
    """Return what is missing of `package.module:function`; None if nothing is, or if only an import would show it."""
    module, _, name = function.rpartition(":")
    if not is_module(module, folders):
        return f"there is no module {module.partition('.')[0]}; modules in a --config-dir can be imported"
    path = Path(*module.split("."))
    files = [folder / file for folder in folders for file in (f"{path}.py", path / "__init__.py")]
    file = next((file for file in files if file.is_file()), None)
    names = None if file is None else _names(file)
    if file is None or names is None or name in names:
        return None
    return f"{did_you_mean(name, names)}{file} has no {name}"


def _names(file: Path) -> set[str] | None:
    """Return the names that a source file binds; None if it cannot be read, or takes all names of another module."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the import says more
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return None if "*" in names or "__getattr__" in names else names


def _absolute(function: str, key: str, folders: Sequence[Path]) -> str:
    file = file_of(function)
    if file is None:
        return function
    found = next((path for path in (file, *(folder / file for folder in folders)) if path.is_file()), None)
    if found is None:
        raise RequestError("there is no such file", key=key, value=printable(function))
    return f"{found.absolute()}:{function.rpartition(':')[2]}"
