"""The plan of one sweep: its cells in order, and for each impossible cell the reason why it is impossible."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.check import problems, unknown_socs
from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.impossible import impossible_reason
from qnnsweep.conf.models import operators_of
from qnnsweep.conf.names import AXES, METRICS, SHIPPED_BACKENDS
from qnnsweep.conf.schema import (
    LimitsConfig,
    ObjectStoreConfig,
    PrefectConfig,
    Request,
    RetentionConfig,
    ScheduleConfig,
    TrendConfig,
)
from qnnsweep.conf.user_files import folders_of_files, missing, with_absolute_files

SWEEP_KEYS = (
    "artifacts",
    "cache_folder",
    "limits",
    "schedule",
    "retention",
    "trend",
    "prefect",
    "masked_names",
    "object_store",
)
"""The keys whose value must be the same in all cells of a sweep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCell:
    """A cell of a plan."""

    request: Request
    impossible: str | None
    """The reason why the cell is impossible; None if it is possible."""

    @property
    def is_collection(self) -> bool:
        """Whether the cell is possible, and its model a collection of operator cases."""
        return self.impossible is None and self.request.model.cases is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """At least one cell, and the values of `SWEEP_KEYS`, which are the same for all cells of the sweep."""

    cells: tuple[PlannedCell, ...]
    artifacts: str
    cache_folder: str | None
    limits: LimitsConfig
    schedule: ScheduleConfig
    retention: RetentionConfig
    trend: TrendConfig
    prefect: PrefectConfig
    masked_names: str
    object_store: ObjectStoreConfig
    folders: tuple[Path, ...] = ()
    """The folders of the user's own configuration. Modules in them can be imported."""


def plan(requests: Iterable[Request], *, swept: Sequence[str] = (), folders: Sequence[Path] = ()) -> Plan:
    """Check the requests and return their plan. Equal requests become one cell.

    `swept`: the keys with several values, which an error message lists. Raises RequestError for a request with a
    problem, for two different requests with equal names, and for two requests that differ in one of `SWEEP_KEYS`.
    """
    named: dict[tuple[str, ...], Request] = {}
    for request in requests:
        for problem in problems(request):
            raise problem
        request = replace(request, model=with_absolute_files(request.model, folders))
        if request.by_operator:
            request = replace(request, model=operators_of(request.model))
        if named.setdefault(request.names, request) != request:
            raise _same_name(request, swept)
    _check_metrics(named.values(), folders)
    if any(request.backend.kind not in SHIPPED_BACKENDS for request in named.values()):
        make_importable(folders)
    for problem in unknown_socs(named.values()):
        raise problem
    cells = tuple(PlannedCell(request=request, impossible=impossible_reason(request)) for request in named.values())
    if not cells:
        raise RequestError("the sweep is empty: no cell to run")
    first = cells[0].request
    for request in named.values():
        for key in SWEEP_KEYS:
            if getattr(request, key) != getattr(first, key):
                raise RequestError("its value differs between cells; a sweep has only one value of this key", key=key)
    of_files = [folder for request in named.values() for folder in folders_of_files(request.model)]
    return Plan(
        cells=cells,
        folders=tuple(dict.fromkeys([*folders, *of_files])),
        **{key: getattr(first, key) for key in SWEEP_KEYS},
    )


def refuse_trend(plan: Plan, what: str) -> None:
    """Raise RequestError for a key of `trend` that is not the default. `what`: the run, which is no night."""
    default = TrendConfig()
    for field in fields(TrendConfig):
        if getattr(plan.trend, field.name) != getattr(default, field.name):
            problem = f"{what} is not compared with earlier nights, so this key has no effect; leave it out"
            raise RequestError(problem, key=f"trend.{field.name}")


def _check_metrics(requests: Iterable[Request], folders: Sequence[Path]) -> None:
    """Raise RequestError for a metric whose function is missing: the comparison, which needs it, comes last."""
    keys: dict[str, str] = {}
    for request in requests:
        keys |= dict.fromkeys(filter(None, [request.target.metric]), "target.metric")
        keys |= dict.fromkeys(request.measure.metrics, "measure.metrics")
    for name, key in keys.items():
        if name not in METRICS and (problem := missing(name, folders)) is not None:
            raise RequestError(problem, key=key, value=name)


def _same_name(request: Request, swept: Sequence[str]) -> RequestError:
    names = " ".join(f"{axis}={printable(name)}" for axis, name in zip(AXES, request.names, strict=True))
    keys = [key for key in swept if key not in AXES] or swept
    problem = (
        f"two different cells would both be named {names}; "
        f"only the names of {', '.join(AXES)} distinguish cells: choose different names"
    )
    return RequestError(problem, key=", ".join(map(printable, keys)) or "the requests")
