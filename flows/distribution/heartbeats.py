"""A shard whose worker died: Prefect's own automation calls it crashed, once nothing has been heard of it for long.

Prefect's page "detect zombie flows" has it so. From `Pending` on, because a worker may die before the first heartbeat.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.distribution.shard import SHARD

NAME = "qnnsweep: a silent shard has crashed"
_BEGUN = {"prefect.flow-run.Pending", "prefect.flow-run.Running"}
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDED = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelling", "Cancelled", "Crashed")}


def mark_crashed_after(seconds: float) -> None:
    """Have the server, from now on, call every shard crashed that it has not heard of for so long."""
    wanted = AutomationCore(
        name=NAME,
        description="Made by qnnsweep: a sweep on a work pool then tries the shard again.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {"prefect.resource.role": "flow", "prefect.resource.name": SHARD.name}  # type: ignore[arg-type]
            ),
            for_each={"prefect.resource.id"},
            after={*_BEGUN, _HEARTBEAT},
            expect={_HEARTBEAT, *_ENDED},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name=None, message=f"nothing was heard of it for {seconds:g} s", force=False
            )
        ],
    )
    with get_client(sync_client=True) as client:
        known = client.read_automations_by_name(NAME)
        for each in known[:1]:
            client.update_automation(each.id, wanted)
        for each in known[1:]:
            client.delete_automation(each.id)
        if not known:
            client.create_automation(wanted)
