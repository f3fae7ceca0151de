"""A plan: the cells of one sweep in order, each with the reason why it cannot be, if there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.check import problems
from conf.errors import RequestError, printable
from conf.impossible import impossible_reason
from conf.names import AXES
from conf.schema import LimitsConfig, Request, RetentionConfig, ScheduleConfig, TrendConfig

SWEEP_KEYS = ("artifacts", "cache_folder", "limits", "schedule", "retention", "trend")
"""Keys that have one value in a sweep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCell:
    """One cell. `impossible` is why it cannot be; None means that it will be tried."""

    request: Request
    impossible: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `AXES`: no two cells of a plan share them."""
        return _names(self.request)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """At least one cell. What `SWEEP_KEYS` names is the same in every request."""

    cells: tuple[PlannedCell, ...]
    artifacts: str
    cache_folder: str | None
    limits: LimitsConfig
    schedule: ScheduleConfig
    retention: RetentionConfig
    trend: TrendConfig
    folders: tuple[Path, ...] = ()
    """Where the user's own configuration lies: modules beside it can be imported."""


def plan(requests: Iterable[Request], *, swept: Sequence[str] = (), folders: Sequence[Path] = ()) -> Plan:
    """Check the requests and make the plan of them; equal ones become one cell.

    `swept` are the keys that differ between requests, for the message. Raises RequestError for a request with a
    problem, for two different requests with the same names, and for two that differ in what is the whole sweep's.
    """
    named: dict[tuple[str, ...], Request] = {}
    for request in requests:
        for problem in problems(request):
            raise problem
        if named.setdefault(_names(request), request) != request:
            raise RequestError(_two_of_one_name(request, swept))
    cells = tuple(PlannedCell(request=request, impossible=impossible_reason(request)) for request in named.values())
    if not cells:
        raise RequestError("the sweep is empty: no cell to run")
    first = cells[0].request
    for request in named.values():
        for key in SWEEP_KEYS:
            if getattr(request, key) != getattr(first, key):
                raise RequestError(f"{key}: it differs between cells; one sweep has one")
    return Plan(
        cells=cells,
        artifacts=first.artifacts,
        cache_folder=first.cache_folder,
        limits=first.limits,
        schedule=first.schedule,
        retention=first.retention,
        trend=first.trend,
        folders=tuple(folders),
    )


def _names(request: Request) -> tuple[str, ...]:
    return (
        request.model.name, request.scheme.name, request.soc.name, request.backend.name, request.where,
    )  # fmt: skip


def _two_of_one_name(request: Request, swept: Sequence[str]) -> str:
    names = " ".join(f"{axis}={printable(name)}" for axis, name in zip(AXES, _names(request), strict=True))
    culprits = [key for key in swept if key not in AXES] or swept
    return (
        f"{', '.join(map(printable, culprits)) or 'the requests'}: two different cells would both be called {names}; "
        f"only {', '.join(AXES)} tell cells apart: give each its own name"
    )
