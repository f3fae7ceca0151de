"""The digest of the code that a model depends on, for cache keys. It is computed without running any of that code."""

import ast
import contextlib
import csv
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.conf.named import SOURCE as SAMPLES_SOURCE
from qnnsweep.conf.places import is_function
from qnnsweep.conf.user_files import SUFFIX
from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.storage.digest import digest

_LARGE_FOLDER_BYTES = 1 << 30


def code_digest(model: ModelConfig) -> str:
    """Return the digest of the factories and data sources of a model and of its methods.

    It covers the code of the factories and the data sources (`functions_digest`), and the files and folders that their
    arguments name. For a file, it covers the content; for a folder, the names and contents of the files in it. A folder
    of more than a GiB may take long to read: of its files, it covers the names, sizes and times of the last change.
    """
    methods = model.methods or []
    splits = [split for part in (model, *methods) for split in (part.calibration, part.evaluation) if split is not None]
    factories = [model.factory, *(method.factory for method in methods if method.factory is not None)]
    named = [model.arguments, *(method.arguments for method in methods), *(split.arguments for split in splits)]
    contents = [_content(path) for value in named for path in _paths(value)]
    functions = [*factories, *(split.source for split in splits), *_sample_functions(splits)]
    return digest([functions_digest(functions), contents])


def _sample_functions(splits: Sequence[DataConfig]) -> list[str]:
    """Return the functions that the key `samples` or `calibration` of the request names."""
    places = [split.arguments.get("samples") for split in splits if split.source == SAMPLES_SOURCE]
    return [place for place in places if isinstance(place, str) and is_function(place)]


def functions_digest(functions: Sequence[str]) -> str:
    """Return the digest of the code of `functions`: `package.module:function` or `/folder/file.py:function`.

    It covers the source files of the functions, all source files that these files import, directly or indirectly, and
    the versions of all installed distributions that any of these files imports. Only import statements are followed,
    not run-time imports. A module that cannot be found is left out: the call of the function will raise the error.
    """
    files: dict[str, str] = {}
    distributions: dict[str, str] = {}
    waiting = [name.rpartition(":")[0] for name in functions]
    visited: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in visited:
            continue
        visited.add(module)
        if module.endswith(SUFFIX):
            with contextlib.suppress(OSError):  # the call of the function will raise the error
                text = Path(module).read_bytes()
                files[Path(module).name] = hashlib.sha256(text).hexdigest()
                waiting += _imported("", text, is_package=False)
        elif installed := _distributions(module.partition(".")[0]):
            distributions |= {name: metadata.version(name) for name in installed}
        elif (source := _source(module)) is not None:
            text = source.read_bytes()
            files[module] = hashlib.sha256(text).hexdigest()
            waiting += _imported(module, text, is_package=source.name == "__init__.py")
    return digest([files, distributions])


@cache
def _distributions(package: str) -> list[str]:
    """Return the distributions of a top-level package without editable installs, whose source files are read."""
    return [name for name in names_of_distributions(package) if not _is_editable(name)]


def names_of_distributions(package: str) -> list[str]:
    """Return what `metadata.packages_distributions` returns for a package, in a tenth of the time."""
    return [distribution.metadata["Name"] for distribution in _distributions_of_packages().get(package, ())]


@cache
def _distributions_of_packages() -> dict[str, list[metadata.Distribution]]:
    provided: dict[str, list[metadata.Distribution]] = defaultdict(list)
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        for package in declared or {*_top_levels(distribution)}:
            provided[package].append(distribution)
    return dict(provided)


def _top_levels(distribution: metadata.Distribution) -> Iterator[str]:
    """Yield the packages and modules among the files of a distribution."""
    record = distribution.read_text("RECORD")
    files = (
        map(str, distribution.files or ()) if record is None else (row[0] for row in csv.reader(record.splitlines()))
    )
    for file in files:
        if file.endswith(".py"):
            yield file.partition("/")[0].removesuffix(".py")


@cache
def _is_editable(distribution: str) -> bool:
    # Every distribution of that name is read: if the project's folder is on the search path, the first one is the
    # metadata that a build left there.
    origins = (installed.read_text("direct_url.json") for installed in metadata.distributions(name=distribution))
    return any(json.loads(origin or "{}").get("dir_info", {}).get("editable") for origin in origins)


def _source(module: str) -> Path | None:
    """Return a module's source file; None if it has none or is a standard module. Parent packages are not imported."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or not all(parts):
        return None
    search: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        # All finders are used: an editable install adds a finder for its packages.
        specs = (finder.find_spec(name, search) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imported(module: str, text: bytes, *, is_package: bool) -> Iterator[str]:
    """Yield the modules that a source's import statements name, and the packages that contain these modules."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # a relative import beyond the top-level package
                base = resolve_name("." * node.level + (node.module or ""), package)
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]  # a name may be a module
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _paths(value: object) -> Iterator[Path]:
    """Yield the existing files and folders that are named anywhere in a model's arguments, in the arguments' order.

    A folder is yielded only if its name contains a slash, because a plain word usually names something else.
    """
    if isinstance(value, str):
        try:
            if Path(value).is_file() or ("/" in value and Path(value).is_dir()):
                yield Path(value)
        except (OSError, ValueError) as error:
            raise_shortage(error)
            return
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _paths(item)


def _content(path: Path) -> object:
    """Return the SHA-256 of a file, and for a folder what identifies its files; see `code_digest`."""
    if path.is_file():
        return _sha256(path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    stats = [file.stat() for file in files]
    if sum(stat.st_size for stat in stats) > _LARGE_FOLDER_BYTES:
        facts: list[object] = [[stat.st_size, stat.st_mtime_ns] for stat in stats]
    else:
        facts = [_sha256(file) for file in files]
    return [[str(file.relative_to(path)), fact] for file, fact in zip(files, facts, strict=True)]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:  # weights may be larger than memory
        return hashlib.file_digest(file, "sha256").hexdigest()
