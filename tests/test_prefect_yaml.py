"""The deployments of prefect.yaml agree with the flows and the configuration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

from qnnsweep.conf.load import load
from qnnsweep.flows.distribution.spread import POOL

ROOT = Path(__file__).parents[1]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


def test_the_night_has_the_schedule_of_its_experiment() -> None:
    (night,) = [deployment for deployment in DEPLOYMENTS if deployment["name"] == "nightly"]
    schedule = load(["experiment=nightly"]).schedule
    assert night["schedules"] == [{"cron": schedule.cron, "timezone": schedule.timezone}]
    assert night["parameters"]["overrides"] == ["experiment=nightly", "artifacts={{ $QNNSWEEP_ARTIFACTS }}"]
    assert night["parameters"]["pool"] == POOL


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_the_flow_of_a_deployment_has_its_parameters(deployment: dict[str, Any]) -> None:
    flow = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    assert set(deployment.get("parameters", {})) <= set(inspect.signature(flow.fn).parameters)


def test_shards_and_the_flow_that_waits_for_them_have_separate_pools() -> None:
    pools = {deployment["entrypoint"]: deployment["work_pool"]["name"] for deployment in DEPLOYMENTS}
    assert pools == {
        "qnnsweep.flows.distribution.shard.shard": POOL,
        "qnnsweep.flows.distribution.spread.spread": f"{POOL}-nights",
    }
