"""The result of another task as an input of a task.

If another task of Prefect did not complete, Prefect leaves the tasks that need its result pending forever, without
their names. With the futures here, such a task gets its name, and ends as cancelled with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Completed


@dataclass(frozen=True, slots=True)
class NotCompleted:
    """The value of an input whose task did not complete."""

    reason: str


class Upstream(PrefectFuture[Any]):
    """The future of an input. Its state is always completed; its result may be a `NotCompleted`."""

    def __init__(self, future: PrefectFuture[Any], label: str) -> None:
        """`label`: the name of the task run of `future`."""
        self._future = future
        self._label = label

    @property
    def task_run_id(self) -> UUID:
        return self._future.task_run_id

    @property
    def state(self) -> State[Any]:
        return self._future.state if self.problem is None else Completed(data=self.problem)

    @property
    def problem(self) -> NotCompleted | None:
        """What is wrong with the task after its end. None if the task completed."""
        state = self._future.state
        if state.is_completed():
            return None
        # A cancelled task has itself an input that did not complete: pass its reason on.
        inherited = state.message if state.is_cancelled() else None
        return NotCompleted(inherited or f"{self._label} did not complete")

    def wait(self, timeout: float | None = None) -> None:
        self._future.wait(timeout)

    def result(self, timeout: float | None = None, raise_on_failure: bool = True) -> Any:
        del raise_on_failure  # the result of a task that did not complete is a value
        self.wait(timeout)
        return self.state.result()

    def add_done_callback(self, fn: Callable[[PrefectFuture[Any]], None]) -> None:
        self._future.add_done_callback(fn)
