"""The five rules of docs/architecture.md, with a test that fails when a rule is broken.

Rule 4, the channel raises and the command returns, is tested for every transport in tests/devices.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from prefect import Task

from qnnsweep.conf import devices, models, repair, schema, schemes, tolerances
from qnnsweep.conf.names import MEASURE_STEPS, STAGES
from qnnsweep.tasks import records
from qnnsweep.tasks.records import Blob, options
from tests.copies import copy_file, copy_folder

ROOT = Path(__file__).parents[1]
RECORDS = [
    kind for kind in vars(records).values() if isinstance(kind, type) and kind.__module__.startswith(records.__name__)
]
OPTIONS = [kind for kind in vars(options).values() if isinstance(kind, type) and kind.__module__ == options.__name__]
CONFIGURATION = tuple(module.__name__ for module in (devices, models, repair, schema, schemes, tolerances))
STAGES_OF_AN_ATLAS = [
    f"atlas.{name}" for name in ("list_cases", "try_cases", "compile_cases", "measure_cases", "compare_cases")
]
MODULES = [*STAGES, *STAGES_OF_AN_ATLAS, *(f"devices.{step}" for step in MEASURE_STEPS)]
LARGEST_FILE = 400
MOST_ENTRIES_OF_TASKS = 24


def parts(kind: Any) -> Iterator[Any]:
    """Yield the plain types of a type hint: those of `tuple[Blob, ...] | None` are Blob and NoneType."""
    if get_origin(kind) is Literal:
        yield from {type(word) for word in get_args(kind)}
        return
    arguments = [argument for argument in get_args(kind) if argument is not Ellipsis]
    if not arguments or get_origin(kind) is Callable:
        yield kind
        return
    for argument in arguments:
        yield from parts(argument)


def is_key_input(kind: Any) -> bool:
    """Return whether a value of this type belongs to the cache key. Such a value has a digest."""
    return kind in (str, int, float, bool, type(None), *RECORDS, *OPTIONS) or (
        isinstance(kind, type) and kind.__module__ in CONFIGURATION
    )


@pytest.mark.parametrize("path", MODULES)
def test_a_stage_is_a_function_of_values_that_returns_one_record(path: str) -> None:
    function = getattr(importlib.import_module(f"qnnsweep.tasks.{path}"), path.rpartition(".")[2])
    hints = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        without_digest = {kind for kind in parts(hints[parameter.name]) if not is_key_input(kind)}
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert without_digest, f"{parameter.name} is part of the cache key: it belongs before the star"
        else:
            assert not without_digest, f"{parameter.name} has no digest: it belongs behind the star"
    assert hints["return"] in RECORDS


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_options_of_a_stage_are_key_inputs(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field, hint in get_type_hints(kind).items():
        assert all(is_key_input(part) for part in parts(hint)), f"{kind.__name__}.{field}"


@pytest.mark.parametrize("path", [*STAGES, *STAGES_OF_AN_ATLAS])
def test_module_function_and_task_of_a_stage_share_one_name_and_the_task_is_the_last_line(path: str) -> None:
    module, name = importlib.import_module(f"qnnsweep.tasks.{path}"), path.rpartition(".")[2]
    task = getattr(module, f"{name}_task")
    assert isinstance(task, Task)
    assert (task.name, task.fn) == (name, getattr(module, name))
    last = Path(str(module.__file__)).read_text().splitlines()[-1]
    assert last.startswith(f"{name}_task = stage({name}, version=")


def test_a_file_crosses_a_border_only_as_a_blob() -> None:
    plain = {str, int, float, bool, type(None), *RECORDS}
    for kind in RECORDS:
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        for field, hint in get_type_hints(kind).items():
            assert set(parts(hint)) <= plain, f"{kind.__name__}.{field} holds what no other machine can use"
    assert get_type_hints(Blob) == {"sha256": str, "size": int}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    command, environment = [program, "--no-cache"], os.environ | {"PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's packages and contracts, which a test may break."""
    for folder in ("conf", "flows", "tasks", "src"):
        copy_folder(ROOT / folder, tmp_path / folder)
    copy_file(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_point_down_here() -> None:
    linted = lint_imports(ROOT)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("tasks/storage/store.py", "import qnnsweep.tasks.lower", "Imports point down in tasks"),
        ("tasks/numerics/align.py", "import qnnsweep.tasks.devices.farm", "Imports point down in tasks"),
        ("conf/schema.py", "import qnnsweep.tasks.records", "Imports point down"),
        ("conf/load.py", "import qnnsweep.tasks.records", "The configuration does not import the tasks"),
        ("tasks/lower.py", "import qnnsweep.tasks.quantize", "Imports point down in tasks"),
        ("flows/runs/diff.py", "import qnnsweep.flows.sweep", "Imports point down in flows"),
        (
            "tasks/toolchain/backends/select.py",
            "import qnnsweep.tasks.toolchain.reference.graph",
            "Imports point down in tasks.toolchain",
        ),
        (
            "tasks/toolchain/reference/graph.py",
            "import qnnsweep.tasks.toolchain.quantize",
            "Imports point down in tasks.toolchain",
        ),
        (
            "tasks/toolchain/reference/graph.py",
            "import qnnsweep.tasks.toolchain.reference.kernels",
            "No two modules or packages side by side import each other",
        ),
        ("tasks/lower.py", "import prefect", "Prefect is known to the flows and to tasks.stage alone"),
        ("tasks/lower.py", "import torch", "Only tasks.toolchain and the models import the toolchain"),
        ("flows/cli/main.py", "import omegaconf", "Hydra is known to five modules of conf alone"),
        ("tasks/devices/collect.py", "import pyarrow", "Parquet is written and read by tasks.storage alone"),
    ],
)
def test_an_import_that_breaks_a_contract_is_reported(copy: Path, file: str, line: str, broken: str) -> None:
    source = copy / file
    source.write_text(f"{source.read_text()}\n{line}\n")
    linted = lint_imports(copy)
    assert linted.returncode == 1
    assert [line for line in linted.stdout.splitlines() if line.startswith(f"{broken} BROKEN")] != []


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for file in sources("conf", "flows", "tasks", "tests")
    }
    assert {name: lines for name, lines in lengths.items() if lines > LARGEST_FILE} == {}


def test_the_folder_of_the_tasks_has_a_short_listing() -> None:
    entries = {file.relative_to(ROOT / "tasks").parts[0] for file in sources("tasks")} - {"__init__.py"}
    assert len(entries) <= MOST_ENTRIES_OF_TASKS, sorted(entries)


def test_no_module_has_a_name_without_meaning() -> None:
    vague = {"util", "utils", "helper", "helpers", "common", "manager", "base", "misc"}
    assert [file for file in sources("conf", "flows", "tasks") if file.stem in vague] == []


def test_nothing_from_a_configuration_reaches_a_shell_and_nothing_is_unpickled() -> None:
    for file in sources("conf", "flows", "tasks"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword):
                assert node.arg != "shell", f"{file}:{node.value.lineno}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                module, names = getattr(node, "module", None), {alias.name for alias in node.names}
                if (module, names) != ("pickle", {"UnpicklingError"}):  # of a loader of tensors only
                    assert not {module, *names} & {"pickle", "cloudpickle", "dill", "shelve"}, f"{file}:{node.lineno}"


FORKS = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "Process", "ProcessPoolExecutor", "get_context"}
"""What starts a process without a program of its own, or with a copy of this process."""


def test_only_one_module_forks_this_process() -> None:
    forking = {
        str(file.relative_to(ROOT)): node.attr if isinstance(node, ast.Attribute) else node.id
        for file in sources("conf", "flows", "tasks")
        for node in ast.walk(ast.parse(file.read_text()))
        if (
            isinstance(node, ast.Attribute)
            and node.attr in FORKS
            and ast.unparse(node.value) in ("os", "multiprocessing")
        )
        or (isinstance(node, ast.Name) and node.id == "ProcessPoolExecutor")
    }
    assert forking == {"tasks/process_tree.py": "fork"}


def test_a_module_in_no_layer_is_reported(copy: Path) -> None:
    (copy / "tasks" / "stray.py").write_text("")
    linted = lint_imports(copy)
    assert linted.returncode == 1
    assert "qnnsweep.tasks.stray" in linted.stdout
