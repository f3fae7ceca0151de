"""What the work of cells costs: what earlier runs measured, what a plan is expected to take, and what a run has left.

A work is what a stage does once, for one cell or for several. The table `work` of earlier runs has the seconds of each
work and the memory of its process; the table `cells` has the seconds even of results that were reused in these runs.
"""

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from statistics import fmean, median
from typing import Any

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.names import CELL_STAGES, COMPILE_STAGES, MEASURE_STEPS, SHOWN_STAGES
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.schema import Request, Reuse
from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN
from qnnsweep.flows.server.log import warn
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.records.tables import CELL_COLUMNS, SUBJECT_COLUMNS, Row
from qnnsweep.tasks.report.format import about
from qnnsweep.tasks.results.digests import input_digests
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
from qnnsweep.tasks.toolchain.source_digest import code_digest
from qnnsweep.tasks.toolchain.workers.scheduler import CostEstimate
from qnnsweep.tasks.toolchain.workers.supervisor import Subject

_RUNS = 10
"""The number of past runs that are read."""
_VERSIONS = ("python", "torch", "executorch", "torchao", "qnn", "qnn_files", "executorch_files")
_DIGESTS = ("model_digest", "scheme_digest", "soc_digest", "request_digest")
_SECONDS_OF_CELL = {
    "export": "export_s",
    "quantize": "quantize_s",
    "edge": "edge_s",
    "lower": "lower_s",
    "execute": "execute_s",
}
"""The stages whose seconds are in the table `cells` too."""
_FINAL_STATES = ("done", "reused", "failed")
_BASIS = 3
"""So many measured durations of a stage are enough for an estimate. A quarter of the stage's work is enough, too."""
_CORES = "cores"
"""What work on this machine waits for. Other work waits for a device, which has the name of `Request.where`."""

_DEPLOY, _COMPARE = CELL_STAGES.index("deploy"), CELL_STAGES.index("compare")

StageWork = tuple[str, str]
"""A stage, and the label of its work; see `work_label`."""
_Past = defaultdict[tuple[str, str], list[tuple[Row, float]]]
"""The works of earlier runs, by stage and model: the names in the work's row, and its seconds."""


def work_label(stage: str, request: Request) -> str:
    """Return the label of the work that a stage does for a cell. Cells that share the work have the same label."""
    backend, names = backend_of(request.backend.kind), [request.model.name]
    if stage != "export":
        names += [request.scheme.name, *([request.backend.name] if backend.named_in_labels else [])]
    if stage not in ("export", "quantize") and backend.needs_soc:
        names.append(request.soc.name)
    if stage not in ("export", "quantize", "lower") and request.where != "local":
        names.append(request.where)
    if request.toolchain.name != DEFAULT_TOOLCHAIN:
        names.append(request.toolchain.name)
    return " · ".join(names)


def stages_of(request: Request) -> tuple[str, ...]:
    """Return the stages of a cell that the progress display shows: those of its outcome, and then `cure`, if any."""
    return SHOWN_STAGES if request.most_cures and request.model.cases is None else CELL_STAGES


def estimates(store: Store) -> dict[tuple[str, Subject], CostEstimate]:
    """Return, by stage and subject, the median seconds and the highest memory of the calls in the latest runs.

    A sweep uses them to schedule its worker processes. A run whose table cannot be read is left out, and logged.
    """
    costs_of: dict[tuple[str, Subject], list[tuple[float, int]]] = defaultdict(list)
    problems: set[str] = set()
    columns = (*SUBJECT_COLUMNS, "stage", "seconds", "peak_bytes")
    for row in select(store, "work", columns, runs=tables.runs(store)[-_RUNS:], problems=problems):
        subject = tuple(row[name] for name in SUBJECT_COLUMNS if row[name] is not None)
        if subject and row["peak_bytes"] is not None:
            costs_of[row["stage"], subject].append((row["seconds"], row["peak_bytes"]))
    for problem in sorted(problems):
        warn(f"expected costs: a run is left out: {problem}")
    return {
        call: CostEstimate(
            seconds=median(seconds for seconds, _ in costs), peak_bytes=max(peak_bytes for _, peak_bytes in costs)
        )
        for call, costs in costs_of.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedSeconds:
    """What is expected of works before they run."""

    seconds: Mapping[StageWork, float] = field(default_factory=dict[StageWork, float])
    parallel: int = 1
    """The number of calls on this machine that run at the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What is expected of the cells of a plan, in their order."""

    compiled: Sequence[bool]
    """Whether the programs of a cell are stored."""
    unknown: int
    """The number of possible cells for which no run had a similar cell."""
    seconds: float | None
    """The expected duration of the run; None if `unknown` is not zero."""
    expected: ExpectedSeconds = field(default=ExpectedSeconds(), compare=False)
    """The expected seconds of the works of all cells that are not unknown."""


def forecast(plan: Plan) -> Forecast | None:
    """Return the forecast of a plan; None if its store has no run. No file is written, and no stage is run.

    The programs of a cell are stored if a run had a cell with the same inputs and the same toolchain, which was
    compiled. The seconds of a work are those of a cell with the same model, scheme and backend, if possible for the
    same SoC.
    """
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    if not (latest := tables.runs(store)[-_RUNS:]):
        return None
    columns = (*CELL_COLUMNS, *_SECONDS_OF_CELL.values(), *_VERSIONS, *_DIGESTS)
    rows = [row for row in select(store, "cells", columns, runs=latest, problems=set()) if row["lower_s"] is not None]
    calls = select(store, "work", (*CELL_COLUMNS, "stage", "seconds"), runs=latest, problems=set())
    past = _past(rows, calls)
    requests = [cell.request for cell in plan.cells if cell.impossible is None]
    compiled = _compiled(requests, rows, plan)
    known = [_similar("lower", request, past) is not None for request in requests]
    seconds = _seconds(
        [request for request, is_known in zip(requests, known, strict=True) if is_known],
        {id(request) for request, is_compiled in zip(requests, compiled, strict=True) if is_compiled},
        past,
    )
    expected = ExpectedSeconds(seconds=seconds, parallel=plan.limits.parallel or len(os.sched_getaffinity(0)))
    flags = iter(compiled)
    return Forecast(
        compiled=[cell.impossible is None and next(flags) for cell in plan.cells],
        unknown=known.count(False),
        seconds=EtaEstimate(plan.cells, expected).seconds_left() if all(known) else None,
        expected=expected,
    )


def _compiled(requests: Sequence[Request], rows: Sequence[Row], plan: Plan) -> list[bool]:
    """Return whether a run had a cell with the same inputs and versions, per request."""
    make_importable(plan.folders)
    known = {tuple(row[name] for name in (*_DIGESTS, *_VERSIONS)) for row in rows}
    codes = {digest(request.model): request.model for request in requests}
    code_of: dict[str, str] = {}
    for key, model in codes.items():
        with suppress(RequestError):  # the run reports it
            code_of[key] = code_digest(model)
    toolchains = {request.toolchain.name: request.toolchain for request in requests}
    versions_of: dict[str, Mapping[str, str | None]] = {}
    for name, toolchain in toolchains.items():
        with suppress(EnvironmentUnusable):
            versions_of[name] = asdict(toolchain_of(toolchain)[2])
    return [
        (code := code_of.get(digest(request.model))) is not None
        and (versions := versions_of.get(request.toolchain.name)) is not None
        and (*astuple(input_digests(request, code)), *(versions[name] for name in _VERSIONS)) in known
        for request in requests
    ]


def _past(cells: Sequence[Row], calls: Sequence[Row]) -> _Past:
    """Return the works of earlier runs. `cells` and `calls`: rows of the tables `cells` and `work`."""
    seconds: dict[tuple[Any, ...], float] = defaultdict(float)
    for row in calls:
        seconds[tuple(row[name] for name in ("stage", *CELL_COLUMNS))] += row[
            "seconds"
        ]  # a work can make several calls
    for row in cells:
        for stage, column in _SECONDS_OF_CELL.items():
            seconds.setdefault((stage, *(row[name] for name in CELL_COLUMNS)), row[column] or 0.0)
    past: _Past = defaultdict(list)
    for (stage, *names), of_work in seconds.items():
        row = dict(zip(CELL_COLUMNS, names, strict=True))
        past[stage, row["model"]].append((row, of_work))
    return past


def _similar(stage: str, request: Request, past: _Past) -> float | None:
    """Return the seconds of the latest work of the same model, scheme and backend; None if there is none.

    If possible, it is a work for the same SoC, device and toolchain.
    """

    def likeness(work: tuple[Row, float]) -> tuple[bool, bool, bool, str]:
        row, _ = work
        toolchain = row["toolchain"] == request.toolchain.name
        return row["soc"] == request.soc.name, row["device"] == request.where, toolchain, row["run_id"]

    # A call has the kind of its backend as the backend's name, and no name of what it does not depend on.
    schemes, backends = (None, request.scheme.name), (None, request.backend.name, request.backend.kind)
    likely = [
        work
        for work in past[stage, request.model.name]
        if work[0]["scheme"] in schemes and work[0]["backend"] in backends
    ]
    return max(likely, key=likeness, default=(None, None))[1]


def _seconds(requests: Sequence[Request], compiled: Collection[int], past: _Past) -> dict[StageWork, float]:
    """Return the expected seconds of all works of these requests. `compiled`: the ids of those that are compiled."""
    sharing = Counter(work_label("quantize", request) for request in requests if id(request) not in compiled)
    seconds: dict[StageWork, float] = {}
    for request in requests:
        is_stored = id(request) in compiled
        for stage in stages_of(request):
            expected = _similar(stage, request, past) or 0.0
            if stage == "lower":  # the first of the cells that share an edge program computes it for all
                expected += (_similar("edge", request, past) or 0.0) / max(1, sharing[work_label("quantize", request)])
            is_reused = is_stored and (stage in COMPILE_STAGES or request.reuse is Reuse.capture)
            seconds[stage, work_label(stage, request)] = 0.0 if is_reused else expected
    return seconds


class _Usage:
    """How much work used a resource at the same time, until now."""

    def __init__(self, now: float, slots: int) -> None:
        self.busy_s = self.active_s = 0.0
        """The sum of the seconds of all works, and the seconds in which any of them ran."""
        self.slots = slots
        """How many works can use the resource at the same time."""
        self._running, self._at = 0, now

    def change(self, now: float, by: int = 0) -> None:
        """Record that the number of running works changes by `by`."""
        self.busy_s += self._running * (now - self._at)
        self.active_s += (now - self._at) if self._running else 0.0
        self._running, self._at = self._running + by, now


class EtaEstimate:
    """An estimate of the time left, updated with the state of every stage. Not thread-safe: the caller holds a lock."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        expected: ExpectedSeconds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`expected`: what is expected of the works of these cells; None if nothing is."""
        requests = [cell.request for cell in cells if cell.impossible is None]
        self.cells = len(requests)
        self.ended = 0
        """The number of cells that wait for no further stage."""
        self._clock = clock
        self._start = clock()
        self._expected = expected or ExpectedSeconds()
        self._usage = {_CORES: _Usage(clock(), self._expected.parallel)}
        self._usage |= {request.where: _Usage(clock(), len(request.devices)) for request in requests}
        self._where = [request.where for request in requests]
        self._works = [[(stage, work_label(stage, request)) for stage in stages_of(request)] for request in requests]
        self._waiting_cells: dict[StageWork, list[int]] = defaultdict(list)
        self._stages_left = [len(of_cell) for of_cell in self._works]
        for number, of_cell in enumerate(self._works):
            for work in of_cell:
                self._waiting_cells[work].append(number)
        self._pending = set(self._waiting_cells)
        self._since: dict[StageWork, float] = {}
        self._durations: dict[str, list[float]] = defaultdict(list)

    def update(self, stage: str, label: str, state: str) -> None:
        """Record the new state of the stage's work with this label.

        `state`: `queued` (it waits for a core), `running`, `done`, `reused` or `failed`.
        """
        work, now = (stage, label), self._clock()
        if state == "running" and work in self._pending and work not in self._since:
            self._since[work] = now
            self._usage_of(work).change(now, 1)
        if state not in _FINAL_STATES or work not in self._pending:
            return
        self._pending.discard(work)
        if (since := self._since.pop(work, None)) is not None:
            self._usage_of(work).change(now, -1)
            if state == "done":
                self._durations[stage].append(now - since)
        for number in self._waiting_cells[work]:
            # The stages after a failed stage never start.
            before = self._stages_left[number]
            is_last = state == "failed" or work == self._works[number][-1]
            self._stages_left[number] = 0 if is_last else max(0, before - 1)
            if before and not self._stages_left[number]:
                self.ended += 1
                self._drop(number)

    def _usage_of(self, work: StageWork) -> _Usage:
        return self._usage[self._where[self._waiting_cells[work][0]] if work[0] in MEASURE_STEPS else _CORES]

    def _drop(self, number: int) -> None:
        """Drop the pending work of a cell that has ended. Keep the work for which another cell still waits."""
        for work in self._works[number]:
            if not any(self._stages_left[other] for other in self._waiting_cells[work]):
                self._pending.discard(work)

    def seconds_left(self) -> float | None:
        """Return the number of seconds until the end; None if too little is known of the stages that are left.

        A work takes what is expected of it, or else the mean duration of its stage. The longest of these times counts:
        that of the last cell, that of the cores, and that of each device, which waits for its first program, and after
        whose last measurement something is still compared. At first all cores and devices are used at the same time. As
        soon as all stages left have been measured, concurrency stays at its present mean: by Little's law, a time is
        the remaining work divided by the mean number of stages that ran at the same time. Then all work counts too.
        """
        now, remaining = self._clock(), Counter(stage for stage, _ in self._pending)
        done = {stage: len(self._durations[stage]) for stage in remaining}
        is_measured = all(done[stage] >= min(_BASIS, max(1, (done[stage] + n) // 4)) for stage, n in remaining.items())
        if not is_measured and not self._pending <= self._expected.seconds.keys():
            return None
        for usage in self._usage.values():
            usage.change(now)
        mean_s = {stage: fmean(self._durations[stage] or [0.0]) for stage in remaining}
        seconds = {work: self._expected.seconds.get(work) or mean_s[work[0]] for work in self._pending}
        for work in self._since.keys() & seconds:
            seconds[work] = max(0.0, seconds[work] - (now - self._since[work]))
        times = self._times(seconds, is_measured=is_measured)
        busy_s = sum(usage.busy_s for usage in self._usage.values())
        if is_measured and busy_s:
            times.append(math.fsum(seconds.values()) * (now - self._start) / busy_s)
        return max(times)

    def _times(self, seconds: Mapping[StageWork, float], *, is_measured: bool) -> list[float]:
        """Return the times of the cores, of every cell, and of every device. `seconds`: of every work that is left."""

        def total(some: Iterable[StageWork]) -> float:
            return math.fsum(seconds.get(work, 0.0) for work in some)

        def shared(resource: str, some: Iterable[StageWork]) -> float:
            usage = self._usage[resource]
            return total(some) * (usage.active_s / usage.busy_s if is_measured and usage.busy_s else 1 / usage.slots)

        times = [shared(_CORES, (work for work in seconds if work[0] not in MEASURE_STEPS))]
        on_device, around = defaultdict[str, set[StageWork]](set), defaultdict[str, list[tuple[float, float]]](list)
        for where, of_cell in zip(self._where, self._works, strict=True):
            before, during, after = (
                total(of_cell[:_DEPLOY]),
                total(of_cell[_DEPLOY:_COMPARE]),
                total(of_cell[_COMPARE:]),
            )
            times.append(before + during + after)
            if during:
                on_device[where].update(of_cell[_DEPLOY:_COMPARE])
                around[where].append((before, after))
        for where, of_device in on_device.items():
            times.append(shared(where, of_device) + sum(map(min, zip(*around[where], strict=True))))
        return times

    def summary(self) -> str:
        """Return a text such as `3 of 9 cells, about 5 min left`, or `3 of 9 cells` if there is no estimate."""
        left = self.seconds_left() if self.ended < self.cells else None
        return f"{self.ended} of {self.cells} cells" + (f", about {about(left)} left" if left else "")
