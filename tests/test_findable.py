"""Every module has a test with its name, or a line in tests/README.md that names the tests that cover it.

`python -m tests.test_findable` writes tests/README.md again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "tests" / "README.md"
MOST_TESTS = 4
"""Of a module that many tests import, the list names those that import least else."""
HEAD = """\
# Tests

A module's tests are in the file of its name in the mirrored folder: those of `tasks/storage/codec.py`
are in `tests/storage/test_codec.py`. This list, which `python -m tests.test_findable` writes, has the
modules without such a file, and the tests that import them or the modules that use them.

| module | tests |
|---|---|
"""


@cache
def modules() -> list[Path]:
    """Return every module of the product except the `__init__` modules."""
    files = (file for folder in ("conf", "flows", "tasks") for file in sorted((ROOT / folder).rglob("*.py")))
    return [file.relative_to(ROOT) for file in files if file.name != "__init__.py"]


@cache
def files_of_tests() -> list[Path]:
    return [file.relative_to(ROOT) for file in sorted((ROOT / "tests").rglob("test_*.py"))]


def own_test(module: Path) -> Path:
    """Return the path of the test with the module's name. The tests of `tasks/` are directly in tests/."""
    parts = module.parts[1:] if module.parts[0] == "tasks" else module.parts
    return Path("tests", *parts[:-1], f"test_{module.name}")


@cache
def imported(file: Path) -> frozenset[str]:
    """Return the dotted names of the modules, and of their members, that a file imports or starts."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"\b(?:flows|tasks)\.[a-z_.]+", node.value)  # a program: python -m MODULE

    return frozenset(names())


def covering(module: Path) -> list[Path]:
    """Return the tests that import the module, or else those of the modules that import it, and so on."""
    reached = [module]
    while reached:
        names = {name for file in reached for name in dotted(file)}
        tests = [test for test in files_of_tests() if names & imported(test)]
        tests += [own_test(file) for file in reached if (ROOT / own_test(file)).exists()]
        if tests:
            return sorted({*tests}, key=lambda test: (len(imported(test)), test))[:MOST_TESTS]
        reached = [user for user in modules() if names & imported(user) and user not in reached]
    return []


@cache
def dotted(module: Path) -> tuple[str, ...]:
    """Return the dotted names by which a module is imported: its name, and its package if that exports its members."""
    name = ".".join(module.with_suffix("").parts)
    exported = f"from {name} import" in (ROOT / module).with_name("__init__.py").read_text()
    return (name, name.rpartition(".")[0]) if exported else (name,)


@cache
def listing() -> str:
    lines = (
        f"| `{module}` | {', '.join(f'`{test}`' for test in covering(module))} |\n"
        for module in modules()
        if not (ROOT / own_test(module)).exists()
    )
    return HEAD + "".join(lines)


def test_a_module_has_a_test_of_its_name_or_is_in_the_list() -> None:
    assert README.read_text() == listing(), "run `python -m tests.test_findable`"


def test_no_module_of_the_list_is_without_tests() -> None:
    assert [line for line in listing().splitlines() if line.endswith("|  |")] == []


if __name__ == "__main__":
    README.write_text(listing())
