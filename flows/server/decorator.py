"""The decorator of every Prefect flow of qnnsweep."""

import shlex
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from prefect import Flow
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

P = ParamSpec("P")
R = TypeVar("R")


class _Flow(Flow[P, R]):
    """A flow whose parameters are JSON values. Prefect would import FastAPI to convert them, which takes a while."""

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return parameters


def run_flow(
    shown_overrides: Callable[[list[str]], Iterable[str]] = lambda overrides: overrides,
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Return a decorator that turns a function with a parameter `overrides` into a flow with the function's name.

    `shown_overrides`: selects the overrides that are part of the name of a flow run.
    """

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        # The threads only wait: `WorkerPool` and `Farm` limit how much work runs at the same time.
        # The type is Any, because `flow` is declared to accept only task runners of the base class of futures.
        task_runner: Any = ThreadPoolTaskRunner()
        return _Flow(
            function,
            name=function.__name__,
            flow_run_name=lambda: shlex.join([function.__name__, *shown_overrides(flow_run.parameters["overrides"])]),
            task_runner=task_runner,
            validate_parameters=False,
        )

    return decorate
