"""The deployment of a sweep to a Prefect server. The server starts the sweep on a schedule, or on request in its UI."""

import asyncio
import shlex
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect import Flow
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from qnnsweep.conf.plan import Plan
from qnnsweep.conf.schema import ScheduleConfig
from qnnsweep.flows.distribution.spread import spread
from qnnsweep.flows.server import connect, schedules
from qnnsweep.flows.session import command
from qnnsweep.flows.sweep import sweep
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError


def deployment(
    plan: Plan, name: str, overrides: Sequence[str], config_dirs: Sequence[Path], pool: str | None
) -> RunnerDeployment:
    """Return the deployment of the sweep. Raises RequestError for a wrong schedule.

    A run that a user starts in the UI may have other overrides.
    """
    folders = [folder.absolute() for folder in config_dirs]
    options = [f"--pool={pool}"] if pool else []
    parameters = {"overrides": list(overrides), "config_dirs": [str(folder) for folder in folders]}
    return RunnerDeployment.from_flow(
        cast("Flow[..., Any]", spread if pool else sweep),
        name=name,
        description=shlex.join(command(overrides, folders, *options)),
        parameters=parameters | ({"pool": pool} if pool else {}),
        schedules=_schedules(plan.schedule),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def ensure_server() -> None:
    """Raise EnvironmentUnusable if no Prefect server is configured, because a temporary server runs no schedules.

    Raises EnvironmentUnusable also for a server without a login, unless the user accepts such a server.
    """
    if PREFECT_API_URL.value() is None:
        raise EnvironmentUnusable(
            "no Prefect server is configured: start one as docs/prefect.md shows, then set "
            "PREFECT_API_URL=http://127.0.0.1:4200/api and PREFECT_API_AUTH_STRING"
        )
    connect.check_login()
    connect.check_protected()


def serve_until_stopped(deployment: RunnerDeployment, plan: Plan) -> None:
    """Print the schedule. Then start each scheduled or requested run, one at a time, until this process is stopped.

    Raises EnvironmentUnusable if the server does not schedule a run.
    """
    cron, timezone = plan.schedule.cron, plan.schedule.timezone
    when = f"{cron} {timezone}" if cron else "on request only, no schedule.cron"
    page = (PREFECT_UI_URL.value() or PREFECT_API_URL.value() or "").removesuffix("/api")
    name = f"{deployment.flow_name}/{deployment.name}"
    _say(
        f"{name}: {len(plan.cells)} cells, {when}\n"
        f"run the sweep now: prefect deployment run {shlex.quote(name)}, or {page}/deployments\n"
        "Ctrl-C ends this process and pauses the schedule"
    )
    created = cast("UUID", deployment.apply())  # not a coroutine, because there is no event loop here
    watch = schedules.Watch(created, timezone, page, _say, has_schedule=cron is not None)
    if cron is not None:
        _say(watch.next_in_words(schedules.wait_for_run(created)))
    threading.Thread(target=watch.watch, daemon=True).start()
    runner = _Runner(pause_on_shutdown=True, limit=1)
    runner.add_deployment(deployment)
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(runner.start_and_end_on_sigterm())


class _Runner(Runner):
    """A runner that SIGTERM ends like Ctrl-C. Prefect's own handler leaves coroutines that nobody awaits."""

    async def start_and_end_on_sigterm(self) -> None:
        self._task, self._of_task = asyncio.current_task(), asyncio.get_running_loop()
        await self.start()

    def handle_sigterm(self, *_: Any) -> None:
        if self._task is not None:
            self._of_task.call_soon_threadsafe(self._task.cancel)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _schedules(config: ScheduleConfig) -> list[CronSchedule]:
    if config.cron is None:
        return []
    try:
        return [CronSchedule(cron=config.cron, timezone=config.timezone)]
    except ValidationError as error:
        (key,) = error.errors()[0]["loc"] or ("cron",)
        if key == "timezone":
            raise RequestError(f"schedule.timezone={config.timezone}: must be a name of the tz database") from error
        valid = "five fields, for example 0 22 * * * for every night at ten"
        raise RequestError(f"schedule.{key}={config.cron}: must be {valid}") from error
