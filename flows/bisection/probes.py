"""The cells that a bisection measures. Each is an ordinary cell, so that its results come from the cache next time."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from qnnsweep.conf.plan import PlannedCell
from qnnsweep.conf.schema import Reuse
from qnnsweep.flows.bisection.request import Point
from qnnsweep.flows.session import Session
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.results.bisection import Answer
from qnnsweep.tasks.results.oracle import Judgement, Oracle, judgement, untestable
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.repair_rows import renamed
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.toolchain.prepared.overlay import ToolchainUnusable
from qnnsweep.tasks.toolchain.prepared.prepare import ensure
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A point of the bisection with its answer."""

    number: int
    point: Point
    judgement: Judgement
    toolchain: str | None = None
    """The name of the toolchain that was prepared for the point; None if none had to be."""
    cell: CellResult | None = None
    """The cell, under a name that no other probe has; None if there is no cell."""
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict[str, Sequence[Row]])
    """The rows of the cell."""

    @property
    def answer(self) -> Answer:
        return self.judgement.answer

    @property
    def row(self) -> Row | None:
        """The cell's row of the table `cells`."""
        return next(iter(self.tables.get("cells", ())), None)


class Probes:
    """The probes so far. The session measures their cells."""

    def __init__(
        self,
        session: Session,
        oracle: Oracle,
        ends: Collection[Point],
        folders: Sequence[Path],
        on_prepare: Callable[[int], None],
        on_probe: Callable[[Probe], None],
    ) -> None:
        """`ends`: the points that must have a cell. The error of such a point is raised.

        `on_prepare`: is called with the number of toolchains that will be prepared or reused next.
        `on_probe`: is called with every probe.
        """
        self._session = session
        self._ends = {point.words for point in ends}
        self._oracle = oracle
        self._folders = folders
        self._on_prepare, self._on_probe = on_prepare, on_probe
        self._by_words: dict[tuple[str, ...], Probe] = {}

    @property
    def all(self) -> list[Probe]:
        """All probes, in the order in which they were measured."""
        return [*self._by_words.values()]

    def of(self, points: Iterable[Point]) -> list[Probe]:
        """Return the probes of those points that are measured."""
        return [self._by_words[point.words] for point in points if point.words in self._by_words]

    def measure(self, points: Sequence[Point]) -> list[Probe]:
        """Return the probes of the points. Those that are not measured yet are measured in one sweep."""
        new = [*{point.words: point for point in points if point.words not in self._by_words}.values()]
        toolchains = self._prepared(new)
        planned = [self._planned(point, toolchains) for point in new]
        results = self._run([cell for cell in planned if isinstance(cell, PlannedCell)], self._has_end(new))
        for point, cell in zip(new, planned, strict=True):
            toolchain = None if point.toolchain is None else toolchains[point.toolchain]
            name = toolchain if isinstance(toolchain, str) else None
            result = results.pop(0) if isinstance(cell, PlannedCell) else cell
            self._by_words[point.words] = probe = self._judged(point, name, result)
            self._on_probe(probe)
        return self.of(points)

    def _has_end(self, points: Iterable[Point]) -> bool:
        return any(point.words in self._ends for point in points)

    def _prepared(self, points: Sequence[Point]) -> dict[Wanted, str | ToolchainUnusable]:
        """Prepare the toolchains of the points. Map each to its name, or to the reason why there can be none."""
        needed = {toolchain for point in points if (toolchain := point.toolchain) and self._has_end([point])}

        def prepared(wanted: Wanted) -> str | ToolchainUnusable:
            try:
                return ensure(wanted, os.environ).name
            except ToolchainUnusable as error:
                if wanted in needed:
                    raise
                return error

        wanted = [*dict.fromkeys(toolchain for point in points if (toolchain := point.toolchain))]
        if wanted:
            self._on_prepare(len(wanted))
        with ThreadPoolExecutor(self._session.plan.limits.parallel or len(os.sched_getaffinity(0))) as threads:
            return dict(zip(wanted, threads.map(prepared, wanted), strict=True))

    def _planned(
        self, point: Point, toolchains: Mapping[Wanted, str | ToolchainUnusable]
    ) -> PlannedCell | RequestError:
        """Return the cell of a point, or the reason why it has none."""
        toolchain = None if point.toolchain is None else toolchains[point.toolchain]
        if isinstance(toolchain, ToolchainUnusable):
            return toolchain
        try:
            (cell,) = point.plan(self._folders, toolchain).cells
        except RequestError as error:
            if self._has_end([point]):
                raise
            return error
        measure = replace(cell.request.measure, cures=0)  # the answer of a probe needs no cure
        return replace(cell, request=replace(cell.request, reuse=Reuse.capture, measure=measure))

    def _run(self, cells: Sequence[PlannedCell], has_end: bool) -> list[CellResult | RequestError]:
        if not cells:
            return []
        try:
            return [*self._session.measure(cells)]
        except RequestError as error:  # all models are wrong
            if has_end:
                raise
            return [error for _ in cells]

    def _judged(self, point: Point, toolchain: str | None, result: CellResult | RequestError) -> Probe:
        number = len(self._by_words)
        if isinstance(result, RequestError):
            why = untestable(why=str(result))
            return Probe(number=number, point=point, judgement=why, toolchain=toolchain)
        names = {other.cell.request.names for other in self.all if other.cell is not None}
        if result.request.names in names:
            result = renamed(result, f"{result.request.scheme.name} probe {number}")
        tables = rows(self._session.run_id, [result], None)
        return Probe(
            number=number,
            point=point,
            judgement=judgement(self._oracle, tables),
            toolchain=toolchain,
            cell=result,
            tables={name: tables[name] for name in ("cells", "operators", "budget")},
        )
