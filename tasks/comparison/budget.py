"""The error budgets of a cell's final outputs. The errors come from the replay of every captured sample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from qnnsweep.tasks.comparison.evidence import SampleInputs
from qnnsweep.tasks.numerics.budget import Effect, OutputBudget
from qnnsweep.tasks.numerics.element_use import Array, Kernels, Value
from qnnsweep.tasks.numerics.grid import grid_errors
from qnnsweep.tasks.numerics.path import Errors, RunAt, errors_at
from qnnsweep.tasks.numerics.replay import Replayed
from qnnsweep.tasks.records import ErrorShare, LoweredMethod
from qnnsweep.tasks.records.vocabulary import CAUSES, Cause


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputError:
    """A final output of the device and of eager PyTorch, for one sample."""

    actual: Array
    reference: Array
    before: int
    """The number of earlier samples whose errors are finite."""


def sample_budgets(
    lowered: LoweredMethod,
    kernels: Kernels,
    inputs: SampleInputs,
    float_constants: Mapping[int, Value],
    replayed: Mapping[int, Replayed],
    unlogged: Mapping[int, Array],
    outputs: Mapping[int, OutputError],
) -> dict[int, OutputBudget]:
    """Return the budgets of the final outputs for one sample, by the number of the output.

    `unlogged`: by operator, the errors that rounded weights cause at values that were not logged.
    """
    errors: dict[int, Mapping[Cause, Array]] = {
        index: operator.errors for index, operator in replayed.items() if operator.errors
    }
    errors |= {index: {"weights": error} for index, error in unlogged.items()}
    for position, (exact, rounded, qparams) in enumerate(
        zip(inputs.exact, inputs.rounded, lowered.input_qparams, strict=True)
    ):
        if not np.array_equal(exact, rounded, equal_nan=exact.dtype.kind == "f"):
            in_float16: Mapping[Cause, Array] = {"resolution": rounded - exact}
            errors[-1 - position] = in_float16 if qparams is None else grid_errors(exact, rounded, qparams)
    run_at = _path(lowered, kernels, inputs, float_constants, errors)
    budgets = {output: OutputBudget(before=error.before) for output, error in outputs.items()}
    for output, budget in budgets.items():
        budget.add(run_at, output, outputs[output].actual, outputs[output].reference, errors)
    return budgets


def _path(
    lowered: LoweredMethod, kernels: Kernels, inputs: SampleInputs, float_constants: Mapping[int, Value], errors: Errors
) -> RunAt | str:
    """Return the runs between the float model's and the device's, or the reason why there are none."""
    for index, parts in errors.items():
        if not all(np.isfinite(error).all() for error in parts.values()):
            name = lowered.operators[index].name if index >= 0 else "an input"
            return f"the error of {name} is not finite"
    return lru_cache(maxsize=1)(partial(kernels.between, inputs.exact, float_constants, errors_at(errors)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorBudget:
    """The budgets of all final outputs.

    `outputs`: by the number of the output. With states, only the outputs that are no states have a budget, unless all
    outputs are states. `unknown_weights`: the operators whose float weights are not known.
    """

    lowered: LoweredMethod
    outputs: Mapping[int, OutputBudget]
    unknown_weights: Sequence[str]

    def shares(self) -> Iterator[ErrorShare]:
        """Yield, per final output, the totals of all causes and then the operators, the largest share first."""
        for position, budget in self.outputs.items():
            effects = budget.effects()
            for cause in CAUSES if not effects else ():
                yield self._share(position, budget, Effect(cause=cause, operator=None))
            for effect in effects:
                yield self._share(position, budget, effect)

    def _why(self, budget: OutputBudget) -> str | None:
        unknown = len(self.unknown_weights)
        weights = f"the float weights of {unknown} operators are not known" if unknown else None
        return "; ".join(filter(None, (weights, budget.why))) or None

    def _share(self, position: int, budget: OutputBudget, effect: Effect) -> ErrorShare:
        exported = self.lowered.quantized.exported
        index = effect.operator
        name, module = None, None
        if index is not None and index < 0:
            name, module, index = exported.inputs[-1 - index].name, "", None
        elif index is not None:
            name, module = self.lowered.operators[index].name, self.lowered.operators[index].module_path
        return ErrorShare(
            output_index=position,
            output=exported.outputs[position].name,
            cause=effect.cause,
            operator=name,
            operator_index=index,
            module_path=module,
            share=effect.share,
            share_error=effect.share_error,
            alone_snr_db=effect.alone_snr_db,
            samples=budget.samples,
            projections=budget.projections,
            why=self._why(budget) if effect.cause == "unexplained" else None,
        )
