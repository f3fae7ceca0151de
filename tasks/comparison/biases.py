"""The least scales of weights with which a bias of 32 bits fits its grid."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.records import BiasUse, LoweredMethod, Operator, Quantization
from qnnsweep.tasks.storage.store import Store

_STEPS_OF_16_BITS = 2**16 - 1
_LARGEST_BIAS = 2**30  # half of the range of an int32, because HTP changes the sign of a bias that saturates


def bias_uses(lowered: LoweredMethod, store: Store) -> Iterator[BiasUse]:
    """Yield the bias use of every operator that reads a value on a grid, a weight and a bias whose float is known."""
    blob = lowered.quantized.float_weights
    floats: Mapping[str, NDArray[np.float32]] = {} if blob is None else load(store.read(blob))
    by_index = {operator.index: operator for operator in lowered.operators}
    # An operator without a source that is no constant reads an input of the model: which one is not recorded.
    inputs = min(lowered.input_grids.values(), key=_width, default=None)

    def constant(operator: Operator) -> NDArray[np.float32] | None:
        matching = [floats[name] for name in operator.source_nodes if name in floats]
        return matching[0] if len(matching) == 1 else None

    for operator in lowered.operators:
        sources = [by_index[index] for index in operator.sources]
        values = [source for source in sources if not source.constant]
        constants = [constant(source) for source in sources if source.constant]
        if operator.constant or len(values) > 1 or len(constants) != 2:
            continue
        weight, bias = constants
        qparams = values[0].quantization if values else inputs
        if weight is None or bias is None or qparams is None or len(qparams.scale) != 1:
            continue
        # The weight of a norm has one axis. It has no scale per channel.
        if weight.ndim > 1 and bias.ndim == 1:
            largest, step = float(np.abs(bias).max(initial=0.0)) / _LARGEST_BIAS, qparams.scale[0]
            yield BiasUse(
                operator_index=operator.index,
                least_scale=largest / step,
                least_scale_16=largest / (_width(qparams) / _STEPS_OF_16_BITS),
            )


def _width(qparams: Quantization) -> float:
    return (qparams.quant_max - qparams.quant_min) * qparams.scale[0]
