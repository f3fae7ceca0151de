"""A trial of Prefect's scheduler on this machine: a program that schedules a run in an empty database of its own.

Prefect's versions of its dependencies are ranges. With a version that its scheduler cannot use, every loop of the
scheduler fails, and only the log of the server says so.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from typing import Any

_TRIAL_S = 120


def problem_here() -> str | None:
    """Return the error with which the scheduler of this machine's Prefect fails; None if it schedules a run."""
    with tempfile.TemporaryDirectory(prefix="qnnsweep-schedule-") as folder:
        database = {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}/prefect.db"}
        ran = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            env=os.environ | {"PREFECT_HOME": folder} | database,
            capture_output=True,
            text=True,
            timeout=_TRIAL_S,
            check=False,
        )
    if ran.returncode == 0:
        return None
    lines = ran.stderr.splitlines() or [f"the trial ended with exit code {ran.returncode}"]
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1])


async def scheduled_runs() -> int:
    """Return how many runs Prefect's scheduler makes for a new deployment with a schedule for every night."""
    from prefect.server import models
    from prefect.server.database import provide_database_interface
    from prefect.server.schemas.core import Deployment, DeploymentSchedule, Flow
    from prefect.server.schemas.schedules import CronSchedule
    from prefect.server.services.scheduler import schedule_recent_deployments

    database: Any = provide_database_interface()
    tables, engine, known = database.Base.metadata.tables.values(), await database.engine(), set[str]()
    for index in [index for table in tables for index in table.indexes]:  # Prefect declares one index twice
        if index.name in known:
            index.table.indexes.discard(index)
        known.add(index.name)
    async with engine.begin() as connection:  # without Prefect's migrations, which take several seconds
        await connection.run_sync(database.Base.metadata.create_all)
    schedule: Any = CronSchedule(cron="0 0 * * *")
    async with database.session_context(begin_transaction=True) as session:
        flow = await models.flows.create_flow(session=session, flow=Flow(name="trial"))
        schedules = [DeploymentSchedule(schedule=schedule, active=True)]
        deployment = Deployment(name="trial", flow_id=flow.id, schedules=schedules)
        await models.deployments.create_deployment(session=session, deployment=deployment)
    await schedule_recent_deployments()
    async with database.session_context() as session:
        return await models.flow_runs.count_flow_runs(session=session)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(scheduled_runs()) else "Error: the scheduler made no run")
