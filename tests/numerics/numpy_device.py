"""A device that computes a program of `numpy_graph` on integer grids, and what it logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qnnsweep.tasks.numerics.dequantize import quantize
from qnnsweep.tasks.numerics.device_run import DeviceRun, Requantized
from qnnsweep.tasks.numerics.element_use import Array, CapturedValue, Value
from qnnsweep.tasks.numerics.float_constants import FloatConstants
from qnnsweep.tasks.numerics.replay import IsSuspect, Replayed
from qnnsweep.tasks.numerics.replay import replay as replay_of
from qnnsweep.tasks.records import Quantization
from tests.numerics.numpy_graph import Program

Damage = Callable[[Array], Array]


@dataclass(frozen=True)
class Device:
    """A device that computes a program in order and rounds each captured operator's value to its grid."""

    qparams: Mapping[int, Quantization]
    hidden: frozenset[int] = frozenset()  # operators that are neither logged nor rounded

    def capture(self, program: Program, damages: Mapping[int, Damage] | None = None) -> dict[int, CapturedValue]:
        """Return the captured values. `damages` change logged elements, which are quantized if there are qparams."""
        values: dict[int, Value] = {}
        captured: dict[int, CapturedValue] = {}
        for index, op in enumerate(program.ops):
            value = op.forward(*(values[source] for source in op.reads))
            value = value if isinstance(value, tuple) else np.asarray(value)
            damage = (damages or {}).get(index, lambda elements: elements)
            if op.constant or index in self.hidden or isinstance(value, tuple):
                values[index] = value
                continue
            captured[index] = logged(value, self.qparams.get(index), damage)
            values[index] = captured[index].dequantized().astype(value.dtype)
        return captured


def logged(value: Array, qparams: Quantization | None, damage: Damage = lambda elements: elements) -> CapturedValue:
    if qparams is None:
        return CapturedValue(elements=np.asarray(damage(value)), qparams=None)
    quantized = np.asarray(quantize(value, qparams)).astype(np.int64)
    return CapturedValue(
        elements=np.asarray(np.clip(damage(quantized), qparams.quant_min, qparams.quant_max)), qparams=qparams
    )


def quantization(scale: float = 0.01, zero_point: int = 0, bits: int = 16) -> Quantization:
    half = 2 ** (bits - 1)
    return Quantization(
        scale=(scale,), zero_point=(zero_point,), axis=None, quant_min=-half, quant_max=half - 1, dtype=f"int{bits}"
    )


def fitting(value: Any, bits: int) -> Quantization:
    """Return the unsigned grid from the least to the largest element of a value."""
    low, high, most = min(0.0, float(value.min())), max(0.0, float(value.max())), 2**bits - 1
    scale = (high - low) / most
    return Quantization(
        scale=(scale,), zero_point=(round(-low / scale),), axis=None, quant_min=0, quant_max=most, dtype=f"uint{bits}"
    )


def replay(
    program: Program,
    captured: Mapping[int, CapturedValue],
    is_suspect: IsSuspect,
    reference: Callable[[int], Array | None] = lambda _: None,
    requantized: Requantized | None = None,
    floats: FloatConstants | None = None,
) -> dict[int, Replayed]:
    """Replay a captured run of a program; see `qnnsweep.tasks.numerics.replay.replay`."""
    return replay_of(DeviceRun(program, captured, requantized or {}), is_suspect, reference, floats)
