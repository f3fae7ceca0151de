"""A Prefect flow of empty tasks, with as many task runs as a sweep. `warm.py` compares a warm sweep with this flow."""

from __future__ import annotations

from typing import Any

from prefect import Task, flow, task
from prefect.task_runners import ThreadPoolTaskRunner


@task
def export(model: object, code: object, store: object, workers: object) -> None: ...


@task
def quantize(exported: object, scheme: object, kind: object, arch: object, store: object, workers: object) -> None: ...


@task
def lower(quantized: object, soc: object, options: object, store: object, workers: object) -> None: ...


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
    """Run each stage as often as a sweep does, with the same dependencies."""
    futures: dict[str, list[Any]] = {}

    def submit(name: str, stage: Task[..., Any], *upstream: str) -> None:
        # All parameters that do not come from upstream tasks are None.
        others: list[object] = [None] * (len(stage.fn.__code__.co_varnames) - len(upstream))
        futures[name] = [
            stage.submit(*(futures[before][number % len(futures[before])] for before in upstream), *others)
            for number in range(count[name])
        ]

    submit("export", export)
    submit("quantize", quantize, "export")
    submit("lower", lower, "quantize")
    submit("bundle", bundle, "lower")
    submit("measure", measure, "bundle")
    submit("compare", compare, "lower", "measure")
    submitted = [future for stage in futures.values() for future in stage]
    for future in submitted:
        future.wait()
    return len(submitted)
