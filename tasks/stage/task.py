"""The Prefect task of a stage, and its cache key.

A cache key is the digest of the stage's name and version, the toolchain if the stage uses it, and the key inputs. The
key inputs are the positional arguments, or the values that `key_inputs` selects from these arguments. Keyword-only
arguments are resources. They have no effect on the key.
"""

import copy
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Task
from prefect.cache_policies import CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.states import Cancelled

from qnnsweep.tasks.errors import QnnsweepError
from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.stage.result_cache import RESULT_SUFFIX, Accepts, RecordSerializer, read_result, storage_blocks
from qnnsweep.tasks.stage.task_log import log_failure, log_success
from qnnsweep.tasks.stage.upstream import NotCompleted, Upstream
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.store import Store

P = ParamSpec("P")
R = TypeVar("R")

OnChange = Callable[[str], None]
"""Called with `running`, `done`, `reused` or `failed` when a task run enters that state."""
OnError = Callable[[QnnsweepError], None]


def stage(
    function: Callable[P, R],
    *,
    version: int,
    key_inputs: Callable[..., object] | None = None,
    accepts: Accepts | None = None,
) -> Task[P, R]:
    """Return the Prefect task of a stage.

    `version`: a number that must be increased when `function`, or code that it calls, computes a different result.
    `key_inputs`: a function of the positional arguments that returns the values on which the result depends; by default
    the result depends on all positional arguments. `accepts`: returns whether the stage can have computed a cached
    result; if not, the result is computed again.
    """
    name = function.__name__
    return Task(
        fn=function,
        name=name,
        version=str(version),
        persist_result=True,
        cache_policy=_RecordKey(stage=name, version=version, key_inputs=key_inputs, accepts=accepts),
        result_serializer=RecordSerializer(),
    )


def configure_task(
    task: Task[P, R],
    name: str,
    *,
    store: Store,
    on_change: OnChange,
    on_error: OnError | None = None,
    refresh: bool = False,
    inputs: Sequence[Upstream] = (),
) -> Task[P, R]:
    """Return a copy of the task for one sweep, with a run name, a store for its results and a callback for its states.

    `on_error`: called with the error of a task run that fails, before its state changes. `refresh`: ignore a cached
    result, but cache the new result. `inputs`: the results of other tasks among its
    arguments. If one of them did not complete, the task ends as cancelled, and has not called its function.
    """

    @functools.wraps(task.fn)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        if (problem := _problem(inputs)) is not None:
            return cast("R", Cancelled(message=problem.reason))
        try:
            result = task.fn(*args, **kwargs)
        except QnnsweepError as error:
            log_failure(error, store)
            if on_error is not None:
                on_error(error)
            raise
        log_success(result, store)
        return result

    def on_running(_task: object, _run: TaskRun, _state: State) -> None:
        if _problem(inputs) is None:
            on_change("running")

    def on_completion(_task: object, _run: TaskRun, state: State) -> None:
        on_change("reused" if is_reused(state) else "done")

    def on_failure(_task: object, _run: TaskRun, _state: State) -> None:
        on_change("failed")

    configured = copy.copy(task)  # not `with_options`, which reads and parses the function's source again
    configured.fn = function
    configured.task_run_name = name.replace("{", "{{").replace("}", "}}")  # Prefect formats it with the arguments
    configured.on_running_hooks, configured.on_completion_hooks = [on_running], [on_completion]
    configured.on_failure_hooks = [on_failure]
    if refresh:
        configured.refresh_cache = True
    policy = _policy_of(task)
    keys, records = storage_blocks(store, policy.accepts)
    configured.cache_policy = policy.configure(key_storage=keys)
    # Assigned here, because Task's constructor accepts only a block that a server has registered.
    configured.result_storage = records
    return configured


def _problem(inputs: Iterable[Upstream]) -> NotCompleted | None:
    return next((problem for upstream in inputs if (problem := upstream.problem) is not None), None)


def is_reused(state: State) -> bool:
    return state.name == "Cached"


def result_name(state: State) -> str | None:
    """Return the name, in `RECORDS`, of the result that a task run reused or computed; None if it did neither."""
    key = getattr(getattr(state.data, "metadata", None), "storage_key", None)
    return None if key is None else Path(key).name  # in stores of earlier versions, a key is an absolute path


def stored_result(task: Task[..., R], toolchain: Toolchain | None, *values: Any, store: Store) -> R | None:
    """Return the cached result of a stage for these positional arguments; None if there is none that can be used."""
    policy = _policy_of(task)
    return cast("R | None", read_result(store, policy.result_name(values, toolchain), policy.accepts))


def _policy_of(task: Task[..., Any]) -> "_RecordKey":
    return cast("_RecordKey", task.cache_policy)


# Prefect logs four lines per task about hooks. They would hide the other messages.
logging.getLogger("prefect.task_runs").addFilter(
    lambda record: not record.getMessage().startswith(("Running hook ", "Hook "))
)


@dataclasses.dataclass
class _RecordKey(CachePolicy):
    """The cache policy of a stage: the digest of its key inputs.

    If `compute_key` raises an error, Prefect only logs the error and runs the task without a cache. The caller
    therefore computes the digest of all key inputs before it submits the task.
    """

    stage: str = ""
    version: int = 0
    key_inputs: Callable[..., object] | None = None
    accepts: Accepts | None = None

    def compute_key(
        self,
        task_ctx: TaskRunContext,
        inputs: dict[str, Any],
        flow_parameters: dict[str, Any],  # noqa: ARG002 - Prefect passes it
        **kwargs: Any,  # noqa: ARG002
    ) -> str | None:
        if any(isinstance(value, NotCompleted) for value in inputs.values()):
            return None
        parameters = inspect.signature(task_ctx.task.fn).parameters.values()
        values = [inputs[parameter.name] for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
        return self.result_name(values, getattr(inputs.get("workers"), "identity", None))

    def result_name(self, values: Sequence[Any], toolchain: Toolchain | None) -> str:
        """Return the name of the result for these positional arguments. `toolchain`: None if the stage uses none."""
        selected = list(values) if self.key_inputs is None else self.key_inputs(*values)
        return f"{self.stage}-{digest([self.stage, self.version, toolchain, selected])}{RESULT_SUFFIX}"
