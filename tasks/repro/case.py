"""One operator that introduces error on one sample: what it read on the device, the right value, the measured value."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.device_run import CHAIN, DeviceRun
from qnnsweep.tasks.numerics.element_use import CapturedValue, ElementUse, Value
from qnnsweep.tasks.numerics.introduced import Difference, introduced_error
from qnnsweep.tasks.records import CapturedMethod, LoweredMethod, Operator, Quantization
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph
from qnnsweep.tasks.toolchain.reference.kernels import HostKernels
from qnnsweep.tasks.toolchain.reference.stored_graph import read_graph

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The error of one operator on one sample.

    `error` is the largest error of an element that some reader uses: in steps of the device's grid or, for a value
    without a grid, in the value's unit. It is infinite if an element is not finite on one side only.
    """

    operator: Operator
    operators: tuple[Operator, ...]
    graph: ReferenceGraph
    run: DeviceRun
    inputs: tuple[Array, ...]  # the model's inputs, rounded to the device's grids
    input_qparams: tuple[Quantization | None, ...]
    measured: CapturedValue
    expected: CapturedValue
    used: Array | None  # the elements that some reader uses; None if all are used
    spans: tuple[int, ...]  # earlier operators that the compiler fused with this one: their logged values are not used
    error: float

    def result(self, members: Collection[int], index: int, constants: Mapping[str, Any] | None = None) -> Array | None:
        """Compute an operator on the host. The values between `members` are not rounded.

        What the members read from other operators are the device's own values. `constants`: replaces constants.
        """
        kernels: Any = self.run.kernels
        if constants:
            changed = ReferenceGraph(self.graph.calls, self.graph.outputs, {**self.graph.constants, **constants})
            kernels = HostKernels(changed, self.inputs)
        values: dict[int, Value] = {
            source: value for source, value in self.run.values.items() if source not in kernels.constants
        }
        for member in sorted(members):
            received = {
                source: self.run.received[member, source]
                for source in kernels.sources[member]
                if (member, source) in self.run.received and source not in members
            }
            result = kernels.call(member, {**values, **received})
            if result is None:
                return None
            values[member] = result
        answer = values[index]
        return answer if isinstance(answer, np.ndarray) else None


def read_case(
    lowered: LoweredMethod, capture: CapturedMethod, name: str, sample: int, reported: float | None, store: Store
) -> Case:
    """Return the case of an operator. `reported`: its error in the tables of the run.

    Raises EvidenceError if no way to compute the operator on the host gives the error that was reported.
    """
    evidence = Evidence(lowered, capture, store)
    index = next(operator.index for operator in lowered.operators if operator.name == name)
    captured = evidence.captured_values(sample)
    kernels, inputs = next(evidence.kernels([sample]))
    run = DeviceRun(kernels, captured, evidence.requantized_values(sample, kernels.sources, captured))
    use = ElementUse(kernels, captured, run.values)
    case: Case | None = None
    for depth in range(CHAIN + 1):
        result, through = run.call_unrounded(index, depth) if depth else (run.on_host.get(index), ())
        actual = run.values.get(index)
        if not isinstance(result, np.ndarray) or not isinstance(actual, np.ndarray):
            break
        difference = Difference.between(captured[index], result)
        with np.errstate(over="ignore"):
            used, _ = use.used_mask(index, actual, difference.expected.dequantized(result.dtype))
        measures = introduced_error(difference, used)
        error = float((measures.max_steps if measures.max_steps is not None else measures.gap.max_abs) or 0.0)
        case = Case(
            operator=lowered.operators[index],
            operators=lowered.operators,
            graph=read_graph(store, lowered.reference_calls, lowered.reference_constants),
            run=run,
            inputs=tuple(inputs.rounded),
            input_qparams=lowered.input_qparams,
            measured=difference.actual,
            expected=difference.expected,
            used=used,
            spans=tuple(dict.fromkeys((*run.spans.get(index, ()), *through))),
            error=float("inf") if measures.nonfinite else error,
        )
        if case.error == reported or measures.nonfinite:
            return case
    why = "it cannot be computed on the host" if case is None else f"its error on the host's replay is {case.error!r}"
    raise EvidenceError(
        f"OPERATOR={name}: the run reports an error of {reported!r}, but {why}; run `qnnsweep recompare` and try again"
    )
