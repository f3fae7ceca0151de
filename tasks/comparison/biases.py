"""How much of the range of a 32-bit bias an operator would need if its weights and activations had 16 bits."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.records import BiasUse, LoweredMethod, Operator
from qnnsweep.tasks.storage.store import Store

Floats = NDArray[np.float64]
_STEPS_OF_ACTIVATIONS = 2**16 - 1
_STEPS_OF_WEIGHTS = 2**15 - 1  # from zero to the largest weight
_LARGEST_BIAS = 2**31


def bias_uses(lowered: LoweredMethod, store: Store) -> Iterator[BiasUse]:
    """Yield the bias use of every operator that reads a value on a grid, a weight and a bias whose floats are known.

    The step of a bias is the product of the steps of the input's grid and of the weight's grid. Therefore finer grids
    leave less range for the bias.
    """
    blob = lowered.quantized.float_weights
    floats: Mapping[str, NDArray[np.float32]] = {} if blob is None else load(store.read(blob))
    by_index = {operator.index: operator for operator in lowered.operators}

    def constant(index: int) -> Floats | None:
        matching = [floats[name] for name in by_index[index].source_nodes if name in floats]
        return matching[0].astype(np.float64) if by_index[index].constant and len(matching) == 1 else None

    for operator in lowered.operators:
        match operator.sources:
            case (source, weight_index, bias_index) if not operator.constant:
                weight, bias, width = constant(weight_index), constant(bias_index), _width(by_index[source])
                if weight is None or bias is None or not width:
                    continue
                # The weight of a norm has one axis. It has no scale per channel.
                if weight.ndim > 1 and weight.shape[:1] == bias.shape:
                    yield _bias_use(operator.index, width, weight, bias)
            case _:
                pass


def _width(operator: Operator) -> float | None:
    """Return the width of an operator's grid; None without a grid."""
    qparams = operator.quantization
    if qparams is None or len(qparams.scale) != 1:
        return None
    return (qparams.quant_max - qparams.quant_min) * qparams.scale[0]


def _bias_use(index: int, width: float, weight: Floats, bias: Floats) -> BiasUse:
    largest_weights = np.abs(weight).reshape(len(bias), -1).max(axis=1)
    limits = width / _STEPS_OF_ACTIVATIONS * largest_weights / _STEPS_OF_WEIGHTS * _LARGEST_BIAS
    magnitudes = np.abs(bias)
    # A channel without weights has a tiny step, which only a bias of zero fits.
    needed = np.divide(magnitudes, limits, out=np.where(magnitudes > 0, np.inf, 0.0), where=limits > 0)
    widest = float(limits.max(initial=0.0))
    return BiasUse(
        operator_index=index,
        channels=len(bias),
        per_channel=float(needed.max(initial=0.0)),
        per_tensor=float(magnitudes.max(initial=0.0)) / widest if widest else np.inf,
    )
