"""The schedules of a Prefect server: whether its scheduler makes runs, and what becomes of the runs.

If a server's scheduler fails, only the log of the server says so. So this is tried here, and the runs are watched.
"""

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, get_current_settings

from qnnsweep.tasks.errors import EnvironmentUnusable

Say = Callable[[str], None]

_LOOPS = 1.5
"""How many loops of the server's scheduler the first run of a schedule may take."""
_POLL_S = 1.0
_WATCH_S = 5.0
_SHOWN_RUNS = 20
_STOPPED = "no further sweep is scheduled: the schedule is paused, or the server's scheduler does not work"
REMEDY = (
    "read the log of the server; Prefect 3.8 needs SQLAlchemy below 2.1: install the versions of constraints.txt where "
    "the server runs, and start the server again"
)


def check_here(problem: str | None) -> str:
    """Return the versions on which the scheduler depends. Raises EnvironmentUnusable if there is a problem with them.

    `problem`: what `schedule_trial.problem_here` returned.
    """
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("prefect", "SQLAlchemy"))
    if problem is not None:
        raise EnvironmentUnusable(f"{versions}: a server with these versions starts no sweep: {problem}", remedy=REMEDY)
    return versions


def check_server() -> None:
    """Raise EnvironmentUnusable unless the configured server schedules the runs of a new deployment."""
    with get_client(sync_client=True) as client, _deployment(client) as deployment:
        wait_for_run(deployment)


def wait_for_run(deployment: UUID) -> datetime:
    """Return when the next run of a deployment starts. Raises EnvironmentUnusable if none is scheduled in time."""
    patience_s = _LOOPS * get_current_settings().server.services.scheduler.loop_seconds
    latest = time.monotonic() + patience_s
    with get_client(sync_client=True) as client:
        while (start := _next_start(client, deployment)) is None:
            if time.monotonic() > latest:
                raise EnvironmentUnusable(
                    f"PREFECT_API_URL={PREFECT_API_URL.value()}: the server has scheduled no run within "
                    f"{patience_s:g} s, so it starts no sweep",
                    remedy=REMEDY,
                )
            time.sleep(_POLL_S)
    return start


class Watch:
    """Says when the runs of a deployment start, end, and are late, and when the server stops to schedule them."""

    def __init__(self, deployment: UUID, timezone: str, page: str, say: Say, *, has_schedule: bool) -> None:
        """`page`: the address of Prefect's UI. `has_schedule`: whether there must always be a next run."""
        self._deployment = deployment
        self._zone = ZoneInfo(timezone)
        self._page = page
        self._say = say
        self._has_schedule = has_schedule
        self._known: dict[UUID, str] = {}
        self._is_first = True
        self._problem: str | None = None

    def watch(self) -> None:
        """Look at the runs every few seconds, until the process ends."""
        while True:
            self.look()
            time.sleep(_WATCH_S)

    def look(self) -> None:
        """Say what has changed since the last look. The first look says what runs already, and nothing of the past."""
        try:
            with get_client(sync_client=True) as client:
                begun, start = _begun(client, self._deployment), _next_start(client, self._deployment)
        except (HTTPError, PrefectException) as error:
            self._say_problem(f"the server does not answer, and no sweep starts until it does: {type(error).__name__}")
            return
        for run in reversed(begun):
            self._look_at(run, start)
        self._say_problem(_STOPPED if self._has_schedule and start is None else None)
        self._is_first = False

    def next_in_words(self, start: datetime) -> str:
        return f"the next sweep starts at {start.astimezone(self._zone):%Y-%m-%d %H:%M %Z}"

    def _look_at(self, run: FlowRun, next_start: datetime | None) -> None:
        if run.state is None:
            return
        phase = "ended" if run.state.is_final() else "running" if run.state.type == StateType.RUNNING else "waiting"
        phase = "late" if phase == "waiting" and run.state.name == "Late" else phase
        if self._known.get(run.id) == phase:
            return
        self._known[run.id] = phase
        if phase == "running":
            self._say_at(f"a sweep has started: {self._page}/runs/flow-run/{run.id}")
        elif phase == "late":
            due = run.expected_start_time
            since = "" if due is None else f", since {due.astimezone(self._zone):%H:%M}"
            behind = ": it starts when the sweep before it has ended" if "running" in self._known.values() else ""
            self._say_at(f"a sweep is late{since}{behind}")
        elif phase == "ended" and not self._is_first:
            then = "" if next_start is None else f"; {self.next_in_words(next_start)}"
            self._say_at(f"a sweep has ended after {run.total_run_time.total_seconds():.0f} s: {run.state.name}{then}")

    def _say_problem(self, problem: str | None) -> None:
        """Say a problem once, and once that it is over."""
        if problem != self._problem:
            self._say_at(problem or "the server answers again, and schedules runs")
        self._problem = problem

    def _say_at(self, text: str) -> None:
        self._say(f"{datetime.now(self._zone):%Y-%m-%d %H:%M} {text}")


def _begun(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    """Return the latest runs of a deployment that were to start until now, the latest first."""
    until_now = FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(before_=_now()))
    order = FlowRunSort.EXPECTED_START_TIME_DESC
    return client.read_flow_runs(
        deployment_filter=_only(deployment), flow_run_filter=until_now, sort=order, limit=_SHOWN_RUNS
    )


def _next_start(client: SyncPrefectClient, deployment: UUID) -> datetime | None:
    """Return when the next scheduled run of a deployment starts; None if none is scheduled."""
    waiting = FlowRunFilter(
        expected_start_time=FlowRunFilterExpectedStartTime(after_=_now()),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
    )
    order = FlowRunSort.EXPECTED_START_TIME_ASC
    runs = client.read_flow_runs(deployment_filter=_only(deployment), flow_run_filter=waiting, sort=order, limit=1)
    return runs[0].expected_start_time if runs else None


def _now() -> Any:
    """Return the time now, which a filter converts to Prefect's own type."""
    return datetime.now(UTC)


def _only(deployment: UUID) -> DeploymentFilter:
    return DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))


@contextmanager
def _deployment(client: SyncPrefectClient) -> Generator[UUID]:
    """Yield a new deployment with a schedule for every midnight, of which no run ever starts."""
    flow = client.create_flow_from_name("qnnsweep-doctor")
    every_night = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 0 * * *"))
    deployment = client.create_deployment(flow, name=secrets.token_hex(8), schedules=[every_night])
    try:
        yield deployment
    finally:
        client.delete_deployment(deployment)
