"""A Prefect flow that does nothing, with the task runs of a sweep: what `warm.py` holds a warm sweep against."""

from __future__ import annotations

from typing import Any

from prefect import Task, flow, task
from prefect.task_runners import ThreadPoolTaskRunner


@task
def export(model: object, code: object, store: object, workers: object) -> None: ...


@task
def quantize(exported: object, scheme: object, kind: object, arch: object, store: object, workers: object) -> None: ...


@task
def lower(
    quantized: object, scheme: object, kind: object, soc: object, samples: object, dump: object, profile: object,
    references: object, store: object, workers: object,
) -> None: ...  # fmt: skip


@task
def bundle(lowered: object, measure: object, store: object) -> None: ...


@task
def measure(
    bundle: object, devices: object, soc: object, toolchain: object, store: object, farm: object, step: object,
    run_id: object,
) -> None: ...  # fmt: skip


@task
def compare(
    lowered: object, capture: object, classifier: object, tolerance: object, replayed: object, metrics: object,
    references: object, code: object, store: object, workers: object,
) -> None: ...  # fmt: skip


@flow(task_runner=ThreadPoolTaskRunner(), validate_parameters=False)  # type: ignore[arg-type]
def empty(count: dict[str, int]) -> int:
    """As many runs of each stage as the sweep has, hanging together as its own do."""
    made: dict[str, list[Any]] = {}

    def submitted(name: str, stage: Task[..., Any], *upstream: str) -> None:
        # The names of both functions' parameters are one set: as many of them come from elsewhere.
        others: list[object] = [None] * (len(stage.fn.__code__.co_varnames) - len(upstream))
        made[name] = [
            stage.submit(*(made[each][number % len(made[each])] for each in upstream), *others)
            for number in range(count[name])
        ]

    submitted("export", export)
    submitted("quantize", quantize, "export")
    submitted("lower", lower, "quantize")
    submitted("bundle", bundle, "lower")
    submitted("measure", measure, "bundle")
    submitted("compare", compare, "lower", "measure")
    futures = [each for futures in made.values() for each in futures]
    for each in futures:
        each.wait()
    return len(futures)
