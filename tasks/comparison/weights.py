"""The rounding errors of a quantized model's weights: the weights in the program against the float weights."""

from collections.abc import Mapping
from dataclasses import dataclass

from safetensors import safe_open

from qnnsweep.tasks.numerics.element_use import Kernels
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.float_weights import Floats, dequantizes_constant, float_weight
from qnnsweep.tasks.records import LoweredMethod
from qnnsweep.tasks.storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightErrors:
    """The rounding errors of the weights and biases that the edge graph dequantizes."""

    by_operator: Mapping[int, Floats]
    """Per index of the operator that dequantizes a weight: the dequantized weight minus the float weight."""
    unknown: tuple[str, ...]
    """The names of the operators that dequantize a constant whose float tensor is not known."""

    def floats(self, kernels: Kernels) -> FloatConstants:
        """Return the constants of a program, computed from the float weights."""
        misread = kernels.misread_biases
        weights = {index: error for index, error in self.by_operator.items() if index not in misread}
        biases = {index: error for index, error in self.by_operator.items() if index in misread}
        return FloatConstants(
            weights=kernels.changed_constants(weights) | kernels.exact_constants(),
            biases=kernels.changed_constants(biases) if biases else {},
        )


def weight_errors(lowered: LoweredMethod, store: Store, kernels: Kernels) -> WeightErrors:
    """Return the rounding error of every quantized weight and bias. A float scheme has none.

    `kernels`: the edge graph's kernels, on any inputs.
    """
    blob = lowered.quantized.float_weights
    dequantizing = [*filter(dequantizes_constant, lowered.operators)]
    if blob is None:
        return WeightErrors(by_operator={}, unknown=tuple(operator.name for operator in dequantizing))
    errors: dict[int, Floats] = {}
    unknown: list[str] = []
    store.verify(blob)
    with safe_open(store.path(blob), framework="np") as file:
        stored = {*file.keys()}
        for operator in dequantizing:
            rounded = kernels.call(operator.index, {})
            floats = {name: file.get_tensor(name) for name in operator.source_nodes if name in stored}
            original = float_weight(operator, rounded, floats)
            if original is None or rounded is None or isinstance(rounded, tuple):
                unknown.append(operator.name)
            else:
                errors[operator.index] = rounded - original
    return WeightErrors(by_operator=errors, unknown=tuple(unknown))
