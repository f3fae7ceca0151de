"""The plan of a repair: the cells of one scheme, with the samples of the search and those of the certificate."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load
from qnnsweep.conf.models import ModelConfig
from qnnsweep.conf.plan import Plan, PlannedCell, refuse_trend
from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schema import Reuse
from qnnsweep.conf.schemes import Precision

_TRIALS = 8
"""The number of changes that are tried on the host before each step: far less costly than to compile them."""


def planned(overrides: Sequence[str], folders: Sequence[Path]) -> Plan:
    """Return the plan of a repair: the cells of one model, scheme, backend and device. Raises RequestError."""
    plan = load(overrides, config_dirs=folders)
    refuse_trend(plan, "a repair")
    first = plan.cells[0].request
    if first.target == TargetConfig():
        raise RequestError("a repair needs a target, such as target.final_snr_db=30", key="target")
    _check_metric(first.target)
    for axis in ("model", "scheme", "toolchain", "backend", "where"):
        if any(getattr(cell.request, axis) != getattr(first, axis) for cell in plan.cells):
            key = "device" if axis == "where" else axis
            raise RequestError("a repair has only one value of this key; sweep soc instead", key=key)
    if first.model.cases is not None:
        raise RequestError("a collection of cases cannot be repaired", key="model", value=first.model.name)
    _check_several(first.model, first.target)
    if first.scheme.precision is not Precision.quantized:
        raise RequestError("only a quantized scheme can be repaired", key="scheme", value=first.scheme.name)
    if not (first.measure.dump_operators and first.measure.replay and first.measure.budget):
        keys = "measure.dump_operators, measure.replay and measure.budget"
        raise RequestError(f"{keys} must be true: the candidates come from the error budget", key="measure")
    if first.budget.cycles_ratio is not None and not first.measure.profile_level:
        raise RequestError("needs measure.profile_level=2, which counts the cycles", key="budget.cycles_ratio")
    if (impossible := plan.cells[0].impossible) is not None:
        raise RequestError(f"impossible: {impossible}", key="soc", value=first.soc.name)
    return replace(plan, cells=tuple(_with_certificate(cell) for cell in plan.cells))


def _check_several(model: ModelConfig, target: TargetConfig) -> None:
    """Raise RequestError for a target that a model with several methods or with states cannot have."""
    refused: dict[str, str] = {}
    if model.methods or model.states:
        problem = "the bits of the weights are searched for models with one method and without states alone"
        refused |= dict.fromkeys(("size_kib", "effective_bits"), problem)
    if model.states:
        problem = (
            "a mean or a quantile needs samples that do not depend on each other, and the steps of a sequence do; "
            "use target.final_snr_db or target.top1_agreement"
        )
        refused |= dict.fromkeys(("mean_snr_db", "quantile_snr_db", "metric"), problem)
    for name, problem in refused.items():
        if (value := getattr(target, name)) is not None:
            raise RequestError(problem, key=f"target.{name}", value=str(value))


def _check_metric(target: TargetConfig) -> None:
    names = ("target.metric_at_least", "target.metric_at_most")
    given = zip(names, (target.metric_at_least, target.metric_at_most), strict=True)
    limits = [(name, limit) for name, limit in given if limit is not None]
    if target.metric is not None and not limits:
        problem = f"needs a limit of its mean: {' or '.join(names)}"
        raise RequestError(problem, key="target.metric", value=target.metric)
    if target.metric is None and limits:
        raise RequestError("a limit of target.metric, which is not given", key=limits[0][0], value=str(limits[0][1]))
    if len(limits) == len(names) and limits[0][1] > limits[1][1]:
        raise RequestError(f"is more than {limits[1][0]}={limits[1][1]:g}", key=limits[0][0], value=str(limits[0][1]))


def _with_certificate(cell: PlannedCell) -> PlannedCell:
    """Return the cell with the samples of the certificate after those of the search, and with `reuse=capture`."""
    request = cell.request
    searched, model = _with_more_samples(request.model, request.certificate.samples)
    metrics = list(dict.fromkeys([*request.measure.metrics, *filter(None, [request.target.metric])]))
    measure = replace(request.measure, cures=max(request.measure.cures, _TRIALS), metrics=metrics)
    changed = replace(request, model=model, measure=measure, searched_samples=searched, reuse=Reuse.capture)
    return replace(cell, request=changed)


def _with_more_samples(model: ModelConfig, more: int) -> tuple[int, ModelConfig]:
    """Return how many samples the search uses, and the model with these and `more` evaluation samples.

    With states, a sample is a sequence of steps. A step reads the token of eager PyTorch, so that every step of a
    search is compared, whatever the device would have chosen before.
    """
    if model.driver is not None:
        model = replace(model, driver=replace(model.driver, tokens="teacher_forced"))
    if model.evaluation is not None:
        count = model.evaluation.count
        return count, replace(model, evaluation=replace(model.evaluation, count=count + more))
    sampled = [(method, method.evaluation) for method in model.methods or () if method.evaluation is not None]
    count = max(evaluation.count for _, evaluation in sampled)
    methods = [replace(method, evaluation=replace(data, count=count + more)) for method, data in sampled]
    return count, replace(model, methods=methods)
