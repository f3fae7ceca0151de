"""A store whose every file was written by somebody else: no command runs anything that a file of it names.

Texts of the records, the tables and run.json name a module that Python can import here, and that leaves a file when it
runs. Every library that a process could load from the store is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.flows.cli.main import COMMANDS
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import decode, encode
from qnnsweep.tasks.storage.store import Store
from tests.flows.small_net import write_small_net
from tests.flows.sweep_outputs import passed_result_of
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

NAMED = "planted:Thing"
MODULE = "import os\nos.close(os.open(os.environ['PLANTED'], os.O_CREAT))\ndef Thing(*_, **__): ...\n"
CELL = "small_net/8a8w/SM8650"
SMALL = ("model=small_net", "scheme=8a8w", "soc=SM8650", "measure.operator_samples=1", "measure.cures=0")
WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "run": (SMALL,),
    "plan": (SMALL,),
    "devices": ((),),
    "doctor": ((),),
    "report": ((), ("--format=junit",), ("--format=suite",)),
    "export": (("tensorboard",), ("mlflow",), ("wandb",)),
    "diff": (("previous", "latest"),),
    "recompare": ((), ("tolerance=none", "measure.metrics=[]")),
    "qualify": (("default", "default", *SMALL),),
    "bisect": (("model=small_net scheme=16a8w soc=SM8650", "model=small_net scheme=8a8w soc=SM8650"),),
    "repair": ((*SMALL, "target.final_snr_db=30", "budget.compilations=1"),),
    "atlas": ((*SMALL, "limits.new_cases=1"),),
    "repro": ((CELL,),),
    "list": (("runs",), ("operators",)),
    "tensors": (("latest", CELL, "aten_convolution_default"),),
    "simulate": ((CELL,),),
    "cache": (("prune", "--keep=5", "--dry-run"), ("verify",)),
}
"""The further words of the commands that read a store."""
WITHOUT_STORE = {"inspect", "schema"}
WITH_FOLDER = ("run", "plan", "qualify", "bisect", "repair", "atlas")
UNENDING = {"serve", "ui"}
CHOSEN = {"model", "scheme", "soc", "device", "backend", "toolchain", "run_id", "verb", "outcome", "operator"}
"""The columns by which commands find rows. With another text there, they would stop before they read the others."""


def hostile(value: Any, number: int) -> Any:
    """Return the record with the name of code in one of its texts: that with this number."""
    left = [number]

    def changed(part: Any) -> Any:
        if isinstance(part, Blob):
            return part
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: changed(getattr(part, field.name)) for field in fields(part)})
        if isinstance(part, tuple):
            return tuple(map(changed, part))
        if isinstance(part, str):
            left[0] -= 1
            return NAMED if left[0] == -1 else part
        return part

    return changed(value)


def numbers_of_names(record: Any) -> Iterator[int]:
    """Yield the number of one text per field: that of the first record with this field."""
    seen: set[str] = set()
    count = -1

    def walk(part: Any, where: str) -> Iterator[int]:
        nonlocal count
        if is_dataclass(part) and not isinstance(part, (type, Blob)):
            for field in fields(part):
                yield from walk(getattr(part, field.name), f"{type(part).__name__}.{field.name}")
        elif isinstance(part, tuple):
            for element in part:
                yield from walk(element, where)
        elif isinstance(part, str):
            count += 1
            if where not in seen:
                seen.add(where)
                yield count

    yield from walk(record, "")


@pytest.fixture(scope="module")
def program(served_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("importable")
    (folder / "planted.py").write_text(MODULE)
    environment = served_program.environment
    path = f"{folder}:{environment.get('PYTHONPATH', '')}"
    return replace(served_program, environment=environment | {"PYTHONPATH": path, "PLANTED": str(folder / "ran")})


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user") / "conf"
    write_small_net(folder)
    return folder


@pytest.fixture(scope="module")
def store(program: Program, conf: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of two runs, every text of which is hostile, apart from the names of the cells."""
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder)
    for _ in range(2):
        passed_result_of(program.run("run", "--json", *SMALL, f"--config-dir={conf}", f"artifacts={folder}"))
    for run in tables.runs(store):
        for name in tables.TABLES:
            rows = [
                {key: NAMED if isinstance(text, str) and key not in CHOSEN else text for key, text in row.items()}
                for row in tables.rows(store, name, run)
            ]
            tables.write(store, run, name, rows)
        file = folder / "runs" / run / "run.json"
        facts = json.loads(file.read_text())
        folder_of_code = Path(program.environment["PLANTED"]).parent
        facts["command"] = ["qnnsweep", "run", f"--config-dir={folder_of_code}", "model=planted.py:Thing"]
        facts["cells"]["values"]["measure"][0]["metrics"] = [NAMED]
        facts["cells"]["values"]["backend"][0]["kind"] = NAMED
        facts["cells"]["values"]["model"][0] |= {"factory": NAMED, "cases": NAMED}
        file.write_text(json.dumps(facts))
    libraries = folder / "toolchain" / "qnn-2.5.0" / "lib" / "x86_64-linux-clang"
    libraries.mkdir(parents=True)
    for name in ("libQnnHtp.so", "libstdc++.so.6", "libz.so.1", "libc++.so.1"):
        (libraries / name).write_text("not a library")
    (folder / "devices" / "local" / "blobs" / "numpy.py").write_text(MODULE)
    for name in ("sitecustomize.py", "numpy.py", "torch.py"):
        (folder / name).write_text(MODULE)
    return store


def assert_nothing_ran(program: Program, what: str) -> None:
    assert not Path(program.environment["PLANTED"]).exists(), what


def test_the_words_above_are_those_of_every_command_that_ends() -> None:
    assert {*WORDS} | UNENDING | WITHOUT_STORE == {command.called for command in COMMANDS} | {"cache"}


@pytest.mark.parametrize(("command", "words"), [(name, words) for name, all_ in WORDS.items() for words in all_])
def test_no_command_runs_what_a_store_names(
    program: Program, store: Store, conf: Path, tmp_path: Path, command: str, words: tuple[str, ...]
) -> None:
    folder = [f"--config-dir={conf}"] if command in WITH_FOLDER else []
    ran = program.run(command, *words, *folder, f"--artifacts={store.root}")
    assert_nothing_ran(program, command)
    assert ran.returncode in (0, 1, 2), ran.stderr
    assert "Traceback" not in ran.stderr
    if command == "run":
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["lowered.parquet", "capture.parquet"])
def test_no_field_of_the_evidence_chooses_code(program: Program, store: Store, name: str) -> None:
    """Every field is hostile once, in a store of its own values: the comparison and the reading run in one process."""
    (file, *_) = sorted((store.root / "runs").rglob(name))
    record = decode(file.read_bytes())
    for number in numbers_of_names(record):
        with suppress(TypeError):  # a field that accepts only certain words
            file.with_suffix(f".{number}").write_bytes(encode(hostile(record, number)))
    lines = f"""
import sys
from pathlib import Path
from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.codec import decode
from qnnsweep.tasks.storage.store import Store
store, folder = Store(Path({str(store.root)!r})), Path({str(file.parent)!r})
tried = 0
for file in folder.glob({f"{Path(name).stem}.[0-9]*"!r}):
    records = {{name: decode((folder / f"{{name}}.parquet").read_bytes()) for name in ("lowered", "capture")}}
    records[{Path(name).stem!r}] = decode(file.read_bytes())
    try:
        compare_methods(records["lowered"], records["capture"], ComparisonOptions(classifier=False), store)
    except Exception as error:
        print(type(error).__name__)
    tried += 1
assert "planted" not in sys.modules
print(tried)
"""
    ran = program.python(lines)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[-1]) > 4
    assert_nothing_ran(program, name)
