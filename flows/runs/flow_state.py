"""The state and the tags of a sweep's flow run, from which automations see that cells have failed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run

from qnnsweep.conf.plan import Plan
from qnnsweep.flows.runs.regressions import count
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.tasks.report.format import OUTCOMES, words

R = TypeVar("R")
_MOST_TAGS = 12


def tag_request(plan: Plan) -> None:
    """Tag the flow run with the models and the schemes of its plan."""
    requests = [cell.request for cell in plan.cells]
    models, schemes = (request.model.name for request in requests), (request.scheme.name for request in requests)
    _add_tags([*_tags("model", models), *_tags("scheme", schemes)])


def end_state(result: SweepResult, fail_on: Sequence[str]) -> SweepResult:
    """Tag the flow run with the outcomes of its cells, and return its last state; see `conf.schema.PrefectConfig`.

    The state contains `result`, and has its type here, because a flow whose function returns a state returns the result
    of this state.
    """
    ends = Counter(row["outcome"] for row in result.cells)
    if regressions := count(result.trends):
        ends["regressed"] = regressions
    _add_tags([f"outcome:{outcome}" for outcome in ends])
    failed = any(ends[outcome] for outcome in fail_on)
    bad = [outcome for outcome in OUTCOMES if ends[outcome] and outcome not in ("passed", "impossible")]
    problems = [f"{ends[outcome]} of {len(result.cells)} {words(outcome)}" for outcome in bad]
    problems += [f"{regressions} regressed"] if regressions else []
    kind = "Failed" if failed else "Completed"
    name = f"{kind}: {', '.join(problems)}" if problems else kind
    message = ", ".join(f"{number} {words(outcome)}" for outcome, number in ends.items())
    state_type = StateType.FAILED if failed else StateType.COMPLETED
    return cast("SweepResult", State(type=state_type, name=name, message=message, data=result))


def returned(state: State[R]) -> R:
    """Return what a flow run has returned, also if its state is Failed. Raises the error of a flow run that raised."""
    result: Any = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result


def _tags(kind: str, names: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(names))
    return [f"{kind}:{name}" for name in unique] if len(unique) <= _MOST_TAGS else [f"{len(unique)} {kind}s"]


def _add_tags(tags: Sequence[str]) -> None:
    """Add tags to this flow run. Outside a flow run, do nothing."""
    if (run_id := flow_run.id) is None:
        return
    with get_client(sync_client=True) as client:
        now = client.read_flow_run(run_id).tags
        client.update_flow_run(run_id, tags=[*dict.fromkeys([*now, *tags])])
