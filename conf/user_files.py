"""Functions that a model names by the path of a Python file."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable
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


def _absolute(function: str, key: str, folders: Sequence[Path]) -> str:
    file = file_of(function)
    if file is None:
        return function
    found = next((path for path in (file, *(folder / file for folder in folders)) if path.is_file()), None)
    if found is None:
        raise RequestError("there is no such file", key=key, value=printable(function))
    return f"{found.absolute()}:{function.rpartition(':')[2]}"
