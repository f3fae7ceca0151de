"""The error budgets of a cell's final outputs. The errors come from the replay of every captured sample."""

from collections.abc import Iterator, Mapping, Sequence
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
from qnnsweep.tasks.toolchain.reference.processes import in_processes
from qnnsweep.tasks.toolchain.reference.threads import in_threads


class ErrorBudget:
    """The budget of every final output. Call `add` with each captured sample, then `shares`."""

    def __init__(
        self, lowered: LoweredMethod, float_constants: Mapping[int, Value], unknown_weights: Sequence[str]
    ) -> None:
        """With states, only the outputs that are no states have a budget, unless all outputs are states."""
        self._lowered = lowered
        self._float_constants = float_constants
        self._unknown_weights = unknown_weights
        budgets = {output: OutputBudget(in_threads, in_processes) for output in lowered.exported.results}
        self._outputs = budgets

    def add(
        self,
        kernels: Kernels,
        inputs: SampleInputs,
        replayed: Mapping[int, Replayed],
        unlogged: Mapping[int, Array],
        actual: Sequence[Array],
        reference: Sequence[Array],
    ) -> None:
        """Add a sample.

        `unlogged`: by operator, the errors that rounded weights cause at values that were not logged. `actual`,
        `reference`: the final outputs of the device and of eager PyTorch.
        """
        errors: dict[int, Mapping[Cause, Array]] = {
            index: operator.errors for index, operator in replayed.items() if operator.errors
        }
        errors |= {index: {"weights": error} for index, error in unlogged.items()}
        for position, (exact, rounded, qparams) in enumerate(
            zip(inputs.exact, inputs.rounded, self._lowered.input_qparams, strict=True)
        ):
            if not np.array_equal(exact, rounded, equal_nan=exact.dtype.kind == "f"):
                in_float16: Mapping[Cause, Array] = {"resolution": rounded - exact}
                errors[-1 - position] = in_float16 if qparams is None else grid_errors(exact, rounded, qparams)
        run_at = self._path(kernels, inputs, errors)
        for output, budget in self._outputs.items():
            budget.add(run_at, output, actual[output], reference[output], errors)

    def shares(self) -> Iterator[ErrorShare]:
        """Yield, per final output, the totals of all causes and then the operators, the largest share first."""
        for position, budget in self._outputs.items():
            effects = budget.effects()
            for cause in CAUSES if not effects else ():
                yield self._share(position, budget, Effect(cause=cause, operator=None))
            for effect in effects:
                yield self._share(position, budget, effect)

    def _path(self, kernels: Kernels, inputs: SampleInputs, errors: Errors) -> RunAt | str:
        """Return the runs between the float model's and the device's, or the reason why there are none."""
        for index, parts in errors.items():
            if not all(np.isfinite(error).all() for error in parts.values()):
                name = self._lowered.operators[index].name if index >= 0 else "an input"
                return f"the error of {name} is not finite"
        run_at = partial(kernels.between, inputs.exact, self._float_constants, errors_at(errors))
        return lru_cache(maxsize=1)(run_at)

    def _why(self, budget: OutputBudget) -> str | None:
        unknown = len(self._unknown_weights)
        weights = f"the float weights of {unknown} operators are not known" if unknown else None
        return "; ".join(filter(None, (weights, budget.why))) or None

    def _share(self, position: int, budget: OutputBudget, effect: Effect) -> ErrorShare:
        exported = self._lowered.quantized.exported
        index = effect.operator
        name, module = None, None
        if index is not None and index < 0:
            name, module, index = exported.inputs[-1 - index].name, "", None
        elif index is not None:
            name, module = self._lowered.operators[index].name, self._lowered.operators[index].module_path
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
