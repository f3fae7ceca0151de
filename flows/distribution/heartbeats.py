"""A Prefect automation that marks a shard as crashed when its heartbeats stop. They stop if the shard's worker dies.

The automation follows the page "detect zombie flows" of Prefect's documentation. It also watches runs in the state
`Pending`, because a worker may die before the first heartbeat.
"""

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from qnnsweep.flows.distribution.shard import shard

NAME = "qnnsweep: a silent shard has crashed"
_STARTED = {"prefect.flow-run.Pending", "prefect.flow-run.Running"}
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDED = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelling", "Cancelled", "Crashed")}


def mark_crashed_after(seconds: float) -> None:
    """Create or update the server's automation that marks a shard as crashed after `seconds` without a heartbeat."""
    automation = AutomationCore(
        name=NAME,
        description="Created by qnnsweep: a sweep on a work pool retries a shard that is marked as crashed.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {"prefect.resource.role": "flow", "prefect.resource.name": shard.name}  # type: ignore[arg-type]
            ),
            for_each={"prefect.resource.id"},
            after={*_STARTED, _HEARTBEAT},
            expect={_HEARTBEAT, *_ENDED},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name=None, message=f"it sent no heartbeat for {seconds:g} s", force=False
            )
        ],
    )
    with get_client(sync_client=True) as client:
        existing = client.read_automations_by_name(NAME)
        for first in existing[:1]:
            client.update_automation(first.id, automation)
        for duplicate in existing[1:]:
            client.delete_automation(duplicate.id)
        if not existing:
            client.create_automation(automation)
