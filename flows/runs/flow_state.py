"""The flow run in Prefect of a run: its name, its tags and its state, from which automations see that cells failed."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from qnnsweep.conf.plan import Plan
from qnnsweep.flows.runs.events import emit_end
from qnnsweep.flows.runs.results import SweepResult

P = ParamSpec("P")
R = TypeVar("R")
_MOST_TAGS = 12


class _Flow(Flow[P, R]):
    """A flow whose parameters are JSON values. Prefect would import FastAPI to convert them, which takes a while."""

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return parameters

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        """Pickle the name of the flow: Dask gets the flow with each task, and a body has callbacks."""
        return _flow_of, (self.fn.__module__, self.fn.__name__)

    def with_body(self, body: Callable[[], R]) -> "_Flow[P, R]":
        """Return this flow with another body, which has its values already.

        Prefect stores the parameters of a flow as JSON, so they cannot be callbacks and must not be secrets.
        """

        @wraps(self.fn)
        def call(*_: P.args, **__: P.kwargs) -> R:
            return _ended(body())

        return _Flow(call, flow_run_name=self.flow_run_name, task_runner=self.task_runner, validate_parameters=False)


def _flow_of(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def run_flow(
    shown_overrides: Callable[[list[str]], Iterable[str]] = lambda overrides: overrides,
) -> Callable[[Callable[P, R]], _Flow[P, R]]:
    """Return a decorator that turns a function with a parameter `overrides` into a flow with the function's name.

    Call the flow with `returned`, because `prefect.fail_on` can make its state Failed.
    `shown_overrides`: selects the overrides that are part of the name of a flow run.
    """

    def decorate(function: Callable[P, R]) -> _Flow[P, R]:
        # The threads only wait: `WorkerPool` and `Farm` limit how much work runs at the same time.
        # The type is Any, because `flow` is declared to accept only task runners of the base class of futures.
        task_runner: Any = ThreadPoolTaskRunner()

        @wraps(function)
        def call(*arguments: P.args, **more: P.kwargs) -> R:
            return _ended(function(*arguments, **more))

        return _Flow(
            call,
            flow_run_name=lambda: shlex.join([function.__name__, *shown_overrides(flow_run.parameters["overrides"])]),
            task_runner=task_runner,
            validate_parameters=False,
        )

    return decorate


def returned(flow: Flow[P, R], *arguments: P.args, **more: P.kwargs) -> R:
    """Run a flow, and return what it returns, also if its state is Failed. Raises the error of a flow that raised."""
    state = cast("State[R]", flow(*arguments, return_state=True, **more))  # type: ignore[call-overload]
    result: Any = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result


def tag_request(plan: Plan) -> None:
    """Tag the flow run with the models and the schemes of its plan."""
    requests = [cell.request for cell in plan.cells]
    models, schemes = (request.model.name for request in requests), (request.scheme.name for request in requests)
    _add_tags([*_tags("model", models), *_tags("scheme", schemes)])


def _ended(result: R) -> R:
    """Tag the flow run with the outcomes of its cells, and return its last state; see `conf.schema.PrefectConfig`.

    The state contains `result`, and has its type here, because a flow whose function returns a state returns the result
    of this state. A part of a run, which returns nothing, has no such state.
    """
    run = result if isinstance(result, SweepResult) else getattr(result, "run", None)
    if not isinstance(run, SweepResult):
        return result
    counts = run.counts
    ends = [*counts.outcomes, *(["regressed"] if counts.regressed else [])]
    tags = _add_tags([f"outcome:{outcome}" for outcome in ends])
    failed = any(outcome in ends for outcome in run.fail_on)
    problems = counts.problems_in_words()
    # Automations, and those that Prefect's UI makes, wait for a state by its name: Failed has no other name.
    kind = "Failed" if failed else "Completed"
    name = kind if failed or not problems else f"{kind}: {', '.join(problems)}"
    message = ", ".join(counts.in_words())
    if tags:
        emit_end(run, kind, tags)
    state_type = StateType.FAILED if failed else StateType.COMPLETED
    return cast("R", State(type=state_type, name=name, message=message, data=result))


def _tags(kind: str, names: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(names))
    return [f"{kind}:{name}" for name in unique] if len(unique) <= _MOST_TAGS else [f"{len(unique)} {kind}s"]


def _add_tags(tags: Sequence[str]) -> list[str]:
    """Add tags to this flow run, and return all that it has now. Outside a flow run, do nothing."""
    if (run_id := flow_run.id) is None:
        return []
    with get_client(sync_client=True) as client:
        whole = list(dict.fromkeys([*client.read_flow_run(run_id).tags, *tags]))
        client.update_flow_run(run_id, tags=whole)
    return whole
