"""The sweep that benchmarks/faults.py disturbs: its folders, its starts, and what its tables say afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
from warm_start import PROGRAM, WarmProgram

from qnnsweep.conf.errors import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, NOT_ALL_PASSED, PASSED
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from tests.flows.kill_and_rerun import Tables, comparable_rows

CELL = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.calibration.count=32", "model.evaluation.count=8"]
IDENTITY = ("model", "scheme", "soc", "backend", "device")
STATUSES = ("status", "verdict")
NOTHING_MASKED = ("masked_elements", 0)
ENDS_S = 1800.0
"""A run that takes longer hangs. With other load on the machine, a run of a minute can take ten."""
REMAINS_S = 120.0
"""A process that still runs so long after its sweep remains. A fork server first ends its imports, which take long."""
FirstStage = Literal["nothing", "compare", "measure", "lower", "everything"]
"""The first stage whose result is missing before the disturbed run."""
MISSING: Mapping[FirstStage, tuple[str, ...]] = {
    "nothing": (),
    "compare": ("compare",),
    "measure": ("compare", "measure"),
    "lower": ("compare", "measure", "bundle", "lower"),
}
"""By the first stage whose result is missing, all stages whose results are removed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A run of the command that has ended, or that was killed because it did not end."""

    exit_code: int | None
    """None if the run did not end."""
    out: str
    err: str
    seconds: float

    @property
    def run_id(self) -> str | None:
        """The run's id; None if the run has not written its tables."""
        last = self.out.splitlines()[-1:]
        return json.loads(last[0]).get("run_id") if last and last[0].startswith("{") else None

    @property
    def error_line(self) -> str | None:
        """The line with which the command refused to go on; None if it did not end with such a line."""
        lines = self.err.strip().splitlines()
        is_line = bool(lines) and lines[-1].startswith("qnnsweep: ") and "Traceback" not in self.err
        return lines[-1] if is_line else None


@dataclass(kw_only=True)
class Sweep:
    """A command with an artifacts folder. `environment`: variables in addition to those of the program."""

    warm: WarmProgram
    folder: Path
    """The working directory, with the folder `artifacts`."""
    command: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    url: str | None = None
    """The URL of the artifacts if they are not in the folder."""
    cold: bool = False
    """Start a new process of Python, with a temporary Prefect server of its own."""
    shared: Path | None = None
    """The artifacts folder of another sweep, for two sweeps on one store."""
    _process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0

    @property
    def artifacts(self) -> Path:
        return self.shared or self.folder / "artifacts"

    @property
    def leases(self) -> Path:
        return self.artifacts / "devices" / "local" / "leases"

    @property
    def store(self) -> Store:
        return Store(self.folder / "reader", self.url) if self.url else Store(self.artifacts)

    def start(self) -> psutil.Process:
        """Start the command."""
        arguments = ["run", "--json", *CELL, "reuse=capture", *self.command, f"artifacts={self.url or self.artifacts}"]
        self._started = time.monotonic()
        if not self.cold:
            return psutil.Process(self.warm.start(arguments, self.folder, **self.environment))
        inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        separate = {"PREFECT_HOME": str(self.folder / "prefect"), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                cwd=self.folder,
                env=inherited | separate | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return psutil.Process(self._process.pid)

    def end(self, process: psutil.Process, family: Sequence[psutil.Process] = ()) -> Ran:
        """Wait for the end of the command that was started last. A command that does not end is killed.

        `family`: processes that must end with the command. Raises AssertionError for a process that remains.
        """
        code = self._wait(ENDS_S)
        if code is None:
            for member in [*process.children(recursive=True), process]:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            self._wait(60)
        _, alive = psutil.wait_procs(family, timeout=REMAINS_S)
        remaining = [member for member in alive if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
        assert not remaining, f"processes remain: {[member.cmdline()[:4] for member in remaining]}"
        out, err = ((self.folder / name).read_text(errors="replace") for name in ("out", "err"))
        return Ran(exit_code=code, out=out, err=err, seconds=time.monotonic() - self._started)

    def run(self) -> Ran:
        """Run the command to its end."""
        return self.end(self.start())

    def tables(self, run_id: str) -> Tables:
        """Return what the tables of a run say, without what may differ between two runs."""
        names = set(tables.TABLES) - {"work", "trends"}
        return {name: comparable_rows(name, tables.rows(self.store, name, run_id)) for name in names}

    def remove_results(self, work: FirstStage) -> None:
        """Remove cached results, so that the next run has work to do."""
        if work == "everything":
            for path in self.artifacts.iterdir():  # not the folder itself, which may be the root of a disk
                shutil.rmtree(path)
            return
        for path in (self.artifacts / "results").glob("*/*"):
            if path.name.partition("-")[0] in MISSING[work]:
                path.unlink()

    def _wait(self, timeout_s: float) -> int | None:
        if self._process is None:
            return self.warm.wait(timeout_s)
        try:
            code, _process = self._process.wait(timeout_s), self._process
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return code


def copied(prepared: Path, artifacts: Path) -> None:
    """Copy an artifacts folder. Its hard links become links within the copy, so that damage does not spread."""
    artifacts.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", f"{prepared}/.", str(artifacts)], check=True)  # noqa: S607


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run says, compared with an undisturbed run."""

    word: Literal["equal", "reported", "refused", "lost"]
    """`reported`: rows say what is missing. `refused`: no rows, but one line that says why. `lost`: neither."""
    text: str = ""


def judge(ran: Ran, sweep: Sweep, expected: Tables) -> Judgement:
    if ran.exit_code is None:
        return Judgement("lost", f"the command did not end within {ENDS_S:.0f} s")
    if (run_id := ran.run_id) is None:
        if ran.error_line is not None:
            return Judgement("refused", ran.error_line)
        return Judgement("lost", f"exit code {ran.exit_code}, no rows and no error line: {ran.err.strip()[-300:]}")
    try:
        actual = sweep.tables(run_id)
    except EvidenceError as error:
        return Judgement("lost", f"the run's own tables cannot be read: {error}")
    failed = {_cell(row): row for row in actual["cells"] if row["outcome"] in ("failed", "infrastructure")}
    silent = [row["stage"] for row in failed.values() if not row["error"]]
    if silent:
        return Judgement("lost", f"a row has no error: {silent}")
    for name in expected:
        wrong = _wrong_rows(actual[name], expected[name], set(failed), may_differ=name in ("cells", "commands"))
        if wrong:
            return Judgement("lost", f"other rows of {name}: {wrong}")
    if ran.exit_code not in ((NOT_ALL_PASSED, ENVIRONMENT_UNUSABLE, DEVICES_UNUSABLE) if failed else (PASSED,)):
        return Judgement("lost", f"the rows are right, but the exit code is {ran.exit_code}")
    if failed:
        return Judgement("reported", "; ".join(f"{row['stage']}: {row['error']}"[:300] for row in failed.values()))
    return Judgement("equal")


def _wrong_rows(
    actual: Sequence[Mapping[str, Any]],
    expected: Sequence[Mapping[str, Any]],
    failed: set[tuple[str, ...]],
    *,
    may_differ: bool,
) -> str | None:
    """Describe how rows differ. A failed cell may lack rows and values, but the values that it has must be right.

    `may_differ`: whether a failed cell's rows of this table may be others.
    """
    of_actual, of_expected = (Counter(map(_text, rows)) for rows in (actual, expected))
    for row in [*(of_actual - of_expected), *(of_expected - of_actual)]:
        is_extra = of_actual[row] > of_expected[row]
        decoded = json.loads(row)
        if is_extra and decoded.get("exit_code"):  # a program that was killed has a row beside that of its second run
            continue
        if _cell(decoded) not in failed:
            return f"{'extra' if is_extra else 'missing'} {_differences(decoded, expected) or row[:600]}"
        if is_extra and not may_differ and not any(_is_part(decoded, json.loads(other)) for other in of_expected):
            return f"extra {row[:600]}"
    return None


def _differences(row: Mapping[str, Any], expected: Sequence[Mapping[str, Any]]) -> str:
    """Describe the columns of a row that differ from those of the most similar row of the same cell."""
    similar = [
        [f"{name} {value!r} instead of {other[name]!r}" for name, value in row.items() if value != other[name]]
        for other in expected
        if _cell(other) == _cell(row)
    ]
    return "; ".join(min(similar, key=len, default=[]))[:1000]


def _is_part(row: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Return whether a row has no other values than another row, except the status that says what is missing."""
    return all(
        value in (None, [], whole[name]) or name in STATUSES or (name, value) == NOTHING_MASKED
        for name, value in row.items()
    )


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def _cell(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in IDENTITY)
