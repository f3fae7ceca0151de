"""Which code stands behind a model: part of its export's cache key, found without running any of it."""

import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

from conf.schema import ModelConfig
from tasks.storage.digest import digest


def code_digest(model: ModelConfig) -> str:
    """Digest of the model's factory and data sources: of what `functions_digest` says, of the content of files that
    their arguments name, and of the names and sizes of the files in folders that they name.
    """
    splits = [split for split in (model.calibration, model.evaluation) if split is not None]
    named = [model.arguments, *(split.arguments for split in splits)]
    contents = [_content(path) for value in named for path in _paths(value)]
    return digest([functions_digest([model.factory, *(split.source for split in splits)]), contents])


def functions_digest(functions: Sequence[str]) -> str:
    """Digest of every source file that `package.module:function`s can import, and of the versions of the installed
    distributions that these need.

    Import statements are followed, run-time imports are not. A module that cannot be found counts as absent: whoever
    calls the function will say so.
    """
    files: dict[str, str] = {}
    distributions: dict[str, str] = {}
    waiting = [name.partition(":")[0] for name in functions]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if installed := _distributions().get(module.partition(".")[0]):
            distributions |= {name: metadata.version(name) for name in installed}
        elif (source := _source(module)) is not None:
            text = source.read_bytes()
            files[module] = hashlib.sha256(text).hexdigest()
            waiting += _imported(module, text, is_package=source.name == "__init__.py")
    return digest([files, distributions])


@cache
def _distributions() -> dict[str, list[str]]:
    """Top-level package to the distributions that provide it. Those installed to be edited are read as files."""
    provided = metadata.packages_distributions().items()
    fixed = {package: [name for name in names if not _is_editable(name)] for package, names in provided}
    return {package: names for package, names in fixed.items() if names}


@cache
def _is_editable(distribution: str) -> bool:
    # All of that name: where its own folder is searched first, what building it left there comes before it.
    said = (each.read_text("direct_url.json") for each in metadata.distributions(name=distribution))
    return any(json.loads(origin or "{}").get("dir_info", {}).get("editable") for origin in said)


def _source(module: str) -> Path | None:
    """The module's source file: found as an import would, but importing no parent package."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or not all(parts):
        return None
    search: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        # Every finder is asked: packages installed to be edited have one of their own.
        found = (finder.find_spec(name, search) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imported(module: str, text: bytes, *, is_package: bool) -> Iterator[str]:
    """Modules that a source names in its import statements, and the packages around them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node, is_package=is_package)
            # `from package import name`: name may be a module of its own.
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _absolute(module: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - 1 if is_package else node.level
    parts = module.split(".")
    base = ".".join(parts[: len(parts) - up])
    return f"{base}.{node.module}" if node.module else base


def _paths(value: object) -> Iterator[Path]:
    """Existing files and folders that are named anywhere in a model's arguments, in their order.

    A folder is one with a slash in its name: a plain word is more often the name of something else.
    """
    if isinstance(value, str):
        try:
            if Path(value).is_file() or ("/" in value and Path(value).is_dir()):
                yield Path(value)
        except (OSError, ValueError):
            return
    elif isinstance(value, dict):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item)


def _content(path: Path) -> object:
    """A file's sha256; of a folder, which may be a data set of many gigabytes, each file's name and size."""
    if path.is_file():
        with path.open("rb") as file:  # weights may be larger than memory
            return hashlib.file_digest(file, "sha256").hexdigest()
    return [[str(file.relative_to(path)), file.stat().st_size] for file in sorted(path.rglob("*")) if file.is_file()]
