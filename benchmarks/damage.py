"""Damage to the captured tensor of one operator, propagated to later operators as on the device.

The result is a debug buffer like that of a device, so that the comparison gets no information except its bytes.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.comparison.evidence import Evidence
from tasks.numerics.dequantize import quantize, undo_layout
from tasks.numerics.element_use import CapturedValue, Kernels, Value
from tasks.toolchain.readback.etdump import tensor

Array = NDArray[Any]


def scaled(real: Array, _: CapturedValue) -> Array:
    """Apply a wrong scale, 5 % too large."""
    return real * 1.05


def channels_swapped(real: Array, _: CapturedValue) -> Array:
    """Exchange the first and the last channel: on axis 1 of an image, on the last axis of other tensors."""
    axis = 1 if real.ndim == 4 else real.ndim - 1
    order = np.arange(real.shape[axis])
    order[[0, -1]] = order[[-1, 0]]
    return np.take(real, order, axis)


def transposed(real: Array, _: CapturedValue) -> Array:
    """Exchange the last two axes if they have the same size."""
    return np.swapaxes(real, -1, -2) if real.ndim > 1 and real.shape[-1] == real.shape[-2] else real


def clamped(real: Array, _: CapturedValue) -> Array:
    """Clamp to half of the range."""
    return np.clip(real, real.min() / 2, real.max() / 2)


def one_step_off(real: Array, captured: CapturedValue) -> Array:
    """Shift the zero point by one."""
    return real if captured.qparams is None else real + captured.qparams.scale[0]


def zero_point_lost(real: Array, captured: CapturedValue) -> Array:
    """Dequantize without the zero point."""
    return real if captured.qparams is None else real + captured.qparams.zero_point[0] * captured.qparams.scale[0]


KINDS: dict[str, Callable[[Array, CapturedValue], Array]] = {
    damage.__name__: damage for damage in (scaled, channels_swapped, transposed, clamped, one_step_off, zero_point_lost)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The first sample of an undamaged capture."""

    evidence: Evidence
    kernels: Kernels
    captured: Mapping[int, CapturedValue]

    @classmethod
    def first(cls, evidence: Evidence) -> Scene:
        return cls(evidence=evidence, kernels=next(evidence.kernels()), captured=evidence.captured_values(0))


def damaged(scene: Scene, index: int, kind: str) -> dict[int, CapturedValue]:
    """Return the tensors that change if operator `index` is damaged: its own, and those of operators that use it.

    The device's error of a dependent operator is kept, in quantized values: its tensor changes by the same amount as
    the output of its reference operator.
    """
    kernels, captured = scene.kernels, scene.captured
    before: dict[int, Value] = {}
    after: dict[int, Value] = {}
    changed: dict[int, CapturedValue] = {}
    for operator, sources in enumerate(kernels.sources):
        affected = any(source in after for source in sources)
        original = captured.get(operator)
        expected = kernels.call(operator, before) if original is None or affected else None
        if original is not None:
            before[operator] = _single(original.dequantized())
        elif expected is not None:
            before[operator] = expected
        if operator == index:
            assert original is not None, "only a captured operator can be damaged"
            changed[operator] = _quantized(KINDS[kind](original.dequantized(), original), original)
            after[operator] = _single(changed[operator].dequantized())
        elif affected:
            expected_after = kernels.call(operator, ChainMap(after, before))
            if expected_after is not None and original is not None and isinstance(expected, np.ndarray):
                assert isinstance(expected_after, np.ndarray), "the same call"
                changed[operator] = _moved(original, expected, expected_after)
                after[operator] = _single(changed[operator].dequantized())
            elif expected_after is not None:
                after[operator] = expected_after
    return changed


def written(scene: Scene, changed: Mapping[int, CapturedValue], debug_buffer: bytes) -> bytes:
    """Return the debug buffer with the elements of the changed operators."""
    buffer = np.frombuffer(debug_buffer, np.uint8).copy()
    logged = scene.evidence.logged_operators(0)
    for index, captured in changed.items():
        match = logged[index].match
        elements = tensor(match.event, buffer)
        elements.flags.writeable = True
        undo_layout(elements, match.expected.axis_order)[...] = captured.elements
    return buffer.tobytes()


def error_db(original: CapturedValue, changed: CapturedValue) -> float | None:
    """Return the SNR in dB of the damaged tensor against the original, or None if they are equal."""
    clean = original.dequantized().astype(np.float64)
    error = changed.dequantized().astype(np.float64) - clean
    energy, signal = float(np.square(error).sum()), float(np.square(clean).sum())
    return 10 * float(np.log10(signal / energy)) if energy and signal else None


def error_steps(original: CapturedValue, changed: CapturedValue) -> float:
    """Return the largest error in quantization steps, or in the tensor's own unit if the tensor is not quantized."""
    step = original.qparams.scale[0] if original.qparams else 1.0
    return float(np.abs(changed.dequantized().astype(np.float64) - original.dequantized()).max(initial=0.0)) / step


def _single(real: Array) -> Array:
    return real.astype(np.float32) if real.dtype == np.float64 else real


def _quantized(real: Array, like: CapturedValue) -> CapturedValue:
    elements = real if like.qparams is None else quantize(real, like.qparams)
    return replace(like, elements=elements.astype(like.elements.dtype))


def _moved(original: CapturedValue, before: Array, after: Array) -> CapturedValue:
    if original.qparams is not None:
        steps = quantize(after, original.qparams) - quantize(before, original.qparams)
        elements = np.clip(original.elements + steps, original.qparams.quant_min, original.qparams.quant_max)
    elif before.dtype.kind == "f":
        elements = original.elements + (after - before)
    else:
        elements = np.where(after == before, original.elements, after)
    return replace(original, elements=elements.astype(original.elements.dtype))
