"""Nights that run themselves: the sweep as a deployment of a Prefect server, by its schedule and from its UI."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from prefect import Flow, serve
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from conf.plan import Plan
from conf.schema import ScheduleConfig
from flows.distribution.spread import spread
from flows.run import command
from flows.server import connect
from flows.sweep import sweep
from tasks.errors import EnvironmentUnusable, RequestError

SWEEP, SPREAD = cast("Flow[..., Any]", sweep), cast("Flow[..., Any]", spread)


def deployment(
    plan: Plan, name: str, overrides: Sequence[str], config_dirs: Sequence[Path], pool: str | None
) -> RunnerDeployment:
    """The sweep under a name, with its schedule; what the UI starts may have other overrides. Raises RequestError."""
    folders = [folder.absolute() for folder in config_dirs]
    options = [f"--pool={pool}"] if pool else []
    parameters = {"overrides": list(overrides), "config_dirs": [str(folder) for folder in folders]}
    return RunnerDeployment.from_flow(
        SPREAD if pool else SWEEP,
        name=name,
        description=shlex.join(command(overrides, folders, *options)),
        parameters=parameters | ({"pool": pool} if pool else {}),
        schedules=_schedules(plan.schedule),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def ensure_server() -> None:
    """Raises EnvironmentUnusable where no server of the user's own answers: a temporary one has no schedules."""
    if PREFECT_API_URL.value() is None:
        raise EnvironmentUnusable(
            "no Prefect server is configured: start one with `prefect server start`, then set "
            "PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    connect.ensure()


def promise(plan: Plan, made: RunnerDeployment) -> str:
    """What will happen from now on, for the terminal."""
    when = (
        f"{plan.schedule.cron} {plan.schedule.timezone}" if plan.schedule.cron else "when asked for, no schedule.cron"
    )
    page = (PREFECT_UI_URL.value() or PREFECT_API_URL.value() or "").removesuffix("/api")
    name = f"{made.flow_name}/{made.name}"
    return (
        f"{name}: {len(plan.cells)} cells, {when}\n"
        f"run it now: prefect deployment run {shlex.quote(name)}, or {page}/deployments\n"
        "Ctrl-C ends it and pauses the schedule"
    )


def serve_until_stopped(made: RunnerDeployment) -> None:
    """Start a sweep whenever the server says so, one at a time."""
    serve(made, limit=1, print_starting_message=False)


def _schedules(asked: ScheduleConfig) -> list[CronSchedule]:
    if asked.cron is None:
        return []
    try:
        return [CronSchedule(cron=asked.cron, timezone=asked.timezone)]
    except ValidationError as error:
        (key,) = error.errors()[0]["loc"] or ("cron",)
        value = asked.timezone if key == "timezone" else asked.cron
        meant = "a name of the tz database" if key == "timezone" else "five fields: 0 22 * * * is every night at ten"
        raise RequestError(f"schedule.{key}={value}: {meant}") from error
