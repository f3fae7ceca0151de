"""The error budgets of a sample's final outputs: the causes and operators that an ablation leaves out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qnnsweep.tasks.comparison.evidence import SampleInputs
from qnnsweep.tasks.numerics.ablation import Ablation, Arising, Effect, OutputBudget, Outputs, budget
from qnnsweep.tasks.numerics.arithmetic import Part, SampleRuns
from qnnsweep.tasks.numerics.captured_run import arithmetic_of, unlogged_errors
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.element_use import Array, NoDerivative, Sensitivity
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.grid import grid_errors, half_errors
from qnnsweep.tasks.numerics.metrics import signed_error
from qnnsweep.tasks.numerics.ranking import Errors, errors_at, estimates, finite
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import ErrorShare, LoweredMethod, Quantization
from qnnsweep.tasks.records.vocabulary import CAUSES, Cause

_MOST_UNRANKED = 8  # parts without derivatives that are left out one by one
_MOST_CALLS = 2**13  # operators that are computed to leave out all parts
_MOST_ELEMENTS = 2**24  # of their values
_HALFWAY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleBudget:
    """The budgets of the final outputs of one sample, by the number of the output.

    With states, only the outputs that are no states have a budget, unless all outputs are states.
    """

    sample: int
    outputs: Mapping[int, OutputBudget]
    unknown_weights: Sequence[str]

    def shares(self, lowered: LoweredMethod) -> Iterator[ErrorShare]:
        """Yield, per final output, the totals of all causes and then the operators, the most useful first."""
        for position, of_output in self.outputs.items():
            effects = of_output.effects or tuple(Effect(cause=cause, operator=None) for cause in CAUSES)
            for effect in effects:
                yield self._share(lowered, position, of_output, effect)

    def _why(self, of_output: OutputBudget) -> str | None:
        unknown = len(self.unknown_weights)
        weights = f"the float weights of {unknown} operators are not known" if unknown else None
        return "; ".join(filter(None, (weights, of_output.why))) or None

    def _share(self, lowered: LoweredMethod, position: int, of_output: OutputBudget, effect: Effect) -> ErrorShare:
        exported, index = lowered.quantized.exported, effect.operator
        name, module = None, None
        if index is not None and index < 0:
            name, module, index = exported.inputs[-1 - index].name, "", None
        elif index is not None:
            name, module = lowered.operators[index].name, lowered.operators[index].module_path
        return ErrorShare(
            output_index=position,
            output=exported.outputs[position].name,
            sample=self.sample,
            cause=effect.cause,
            operator=name,
            operator_index=index,
            module_path=module,
            share=effect.share,
            share_error=effect.share_error,
            alone_snr_db=effect.alone_snr_db,
            without_snr_db=effect.without_snr_db,
            why=self._why(of_output) if effect.cause == "unexplained" else None,
        )


def output_budgets(
    grids: Mapping[int, Quantization],
    run: DeviceRun,
    inputs: SampleInputs,
    floats: FloatConstants,
    replayed: Mapping[int, Replayed],
    outputs: Outputs,
) -> dict[int, OutputBudget]:
    """Return the budgets of the final outputs of one sample, by the number of the output.

    `grids`: those of the model's inputs, which have the indices -1, -2, …. `run`, `replayed`: the device's run of the
    sample, and the errors of its operators by cause.
    """
    runs, errors = sample_runs(grids, run, inputs, floats, replayed)
    ablation = Ablation(runs, outputs)
    causes: set[Cause] = {cause for parts in errors.values() for cause, error in parts.items() if error.any()}
    causes |= {"device"} if runs.has_departures else set()
    causes |= {"resolution"} if run.kernels.quantizing else set()
    ranked = finite(errors)
    try:
        halfway: Sensitivity | str = run.kernels.between(inputs.exact, floats.all, errors_at(ranked), _HALFWAY)
    except NoDerivative as reason:
        halfway = str(reason)
    budgets: dict[int, OutputBudget] = {}
    for output in outputs.shipping:
        arising = _arising(halfway, output, outputs, ranked, frozenset(causes))
        always = _always(errors, ranked, replayed, run, has_estimates=bool(arising.estimates))
        budgets[output] = budget(ablation, output, replace(arising, always=always))
    return budgets


def sample_runs(
    grids: Mapping[int, Quantization],
    run: DeviceRun,
    inputs: SampleInputs,
    floats: FloatConstants,
    replayed: Mapping[int, Replayed],
) -> tuple[SampleRuns, dict[int, Mapping[Cause, Array]]]:
    """Return the runs of a sample that leave causes out, and the errors that arise, by operator index and cause.

    The arguments are those of `output_budgets`.
    """
    halves = frozenset(-1 - number for number, is_half in enumerate(inputs.in_float16) if is_half)
    errors: dict[int, Mapping[Cause, Array]] = {
        index: operator.errors for index, operator in replayed.items() if operator.errors
    }
    errors |= unlogged_errors(run, floats) | _input_errors(inputs, grids, halves)
    arithmetic = arithmetic_of(replayed, run, floats, grids, halves)
    return SampleRuns(arithmetic, run.kernels, inputs.exact), errors


def _input_errors(
    inputs: SampleInputs, grids: Mapping[int, Quantization], halves: frozenset[int]
) -> dict[int, Mapping[Cause, Array]]:
    errors: dict[int, Mapping[Cause, Array]] = {}
    for number, (exact, rounded) in enumerate(zip(inputs.exact, inputs.rounded, strict=True)):
        index = -1 - number
        if index in grids:
            errors[index] = grid_errors(exact, rounded, grids[index])
        elif index in halves:
            errors[index] = half_errors(exact)
    return errors


def _arising(
    halfway: Sensitivity | str, output: int, outputs: Outputs, errors: Errors, causes: frozenset[Cause]
) -> Arising:
    if isinstance(halfway, str):
        return Arising(causes=causes, estimates={}, why=halfway)
    error = signed_error(outputs.shipping[output], outputs.eager[output], np.float64)
    if not np.isfinite(error).all():
        return Arising(causes=causes, estimates={}, why="the output has other infinities or NaNs")
    try:
        return Arising(causes=causes, estimates=estimates(halfway, output, error, errors))
    except NoDerivative as reason:
        return Arising(causes=causes, estimates={}, why=str(reason))


def _always(
    errors: Errors, ranked: Errors, replayed: Mapping[int, Replayed], run: DeviceRun, *, has_estimates: bool
) -> list[Part]:
    """Return the parts that are left out whatever their derivatives are: all parts of a small program.

    Of a large program, they are those that no derivative ranks: infinities, booleans and indices; without estimates,
    others too.
    """
    integers: list[Part] = [
        ("device", index)
        for index in sorted(replayed)
        if replayed[index].departure is not None and run.on_host[index].dtype.kind != "f"
    ]
    every: list[Part] = [(cause, index) for index in sorted(errors) for cause in errors[index]]
    arising: list[Part] = [(cause, index) for cause, index in every if errors[index][cause].any()]
    elements = sum(value.size for value in run.on_host.values())
    if len(arising) * len(run.kernels.sources) <= _MOST_CALLS and len(arising) * elements <= _MOST_ELEMENTS:
        return [*arising, *integers]
    infinite = [(cause, index) for cause, index in every if cause not in ranked.get(index, {})]
    parts = [*infinite[:_MOST_UNRANKED], *integers[:_MOST_UNRANKED]]
    if has_estimates:
        return parts
    noise: dict[Part, float] = {
        (cause, index): float(np.square(error, dtype=np.float64).sum()) / (_signal(run, index) or 1.0)
        for index, of_operator in ranked.items()
        for cause, error in of_operator.items()
        if error.any()
    }
    return [*parts, *sorted(noise, key=lambda part: -noise[part])[:_MOST_UNRANKED]]


def _signal(run: DeviceRun, index: int) -> float:
    value = run.on_host.get(index)
    return 0.0 if value is None else float(np.square(value[np.isfinite(value)], dtype=np.float64).sum())
