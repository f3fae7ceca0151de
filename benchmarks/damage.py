"""Damage to one operator's captured tensor, and to all that follows as the damage would propagate on the device.

What comes out is a debug buffer like the one that was collected: the comparison sees nothing but its bytes.
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
    """A wrong scale: 5 % too large."""
    return real * 1.05


def channels_swapped(real: Array, _: CapturedValue) -> Array:
    """The first channel and the last one exchanged: axis 1 of an image, the last axis of anything else."""
    axis = 1 if real.ndim == 4 else real.ndim - 1
    order = np.arange(real.shape[axis])
    order[[0, -1]] = order[[-1, 0]]
    return np.take(real, order, axis)


def transposed(real: Array, _: CapturedValue) -> Array:
    """The last two axes exchanged, where they are equally long."""
    return np.swapaxes(real, -1, -2) if real.ndim > 1 and real.shape[-1] == real.shape[-2] else real


def clamped(real: Array, _: CapturedValue) -> Array:
    """A range that is half as wide."""
    return np.clip(real, real.min() / 2, real.max() / 2)


def one_step_off(real: Array, captured: CapturedValue) -> Array:
    """A zero point that is off by one."""
    return real if captured.qparams is None else real + captured.qparams.scale[0]


def zero_point_lost(real: Array, captured: CapturedValue) -> Array:
    """Codes read without their zero point."""
    return real if captured.qparams is None else real + captured.qparams.zero_point[0] * captured.qparams.scale[0]


KINDS: dict[str, Callable[[Array, CapturedValue], Array]] = {
    each.__name__: each for each in (scaled, channels_swapped, transposed, clamped, one_step_off, zero_point_lost)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One sample of one capture, undamaged."""

    evidence: Evidence
    kernels: Kernels
    captured: Mapping[int, CapturedValue]

    @classmethod
    def first(cls, evidence: Evidence) -> Scene:
        return cls(evidence=evidence, kernels=next(evidence.kernels()), captured=evidence.captured_values(0))


def damaged(scene: Scene, index: int, kind: str) -> dict[int, CapturedValue]:
    """The operators that change when `kind` is done to operator `index`: it, and those after it that feel it.

    Each later operator keeps its own error of the device, in codes, and moves by as much as the reference operator
    moves when its inputs do.
    """
    kernels, captured = scene.kernels, scene.captured
    before: dict[int, Value] = {}
    after: dict[int, Value] = {}
    changed: dict[int, CapturedValue] = {}
    for each, sources in enumerate(kernels.sources):
        moved = any(source in after for source in sources)
        shown = captured.get(each)
        made = kernels.call(each, before) if shown is None or moved else None
        if shown is not None:
            before[each] = _single(shown.dequantized())
        elif made is not None:
            before[each] = made
        if each == index:
            assert shown is not None, "only what was captured can be damaged"
            changed[each] = _stored(KINDS[kind](shown.dequantized(), shown), shown)
            after[each] = _single(changed[each].dequantized())
        elif moved:
            remade = kernels.call(each, ChainMap(after, before))
            if remade is not None and shown is not None and isinstance(made, np.ndarray):
                assert isinstance(remade, np.ndarray), "the same call"
                changed[each] = _moved(shown, made, remade)
                after[each] = _single(changed[each].dequantized())
            elif remade is not None:
                after[each] = remade
    return changed


def written(scene: Scene, changed: Mapping[int, CapturedValue], debug_buffer: bytes) -> bytes:
    """The debug buffer with these operators' elements in place of the collected ones."""
    octets = np.frombuffer(debug_buffer, np.uint8).copy()
    logged = scene.evidence.logged_operators(0)
    for index, each in changed.items():
        match = logged[index].match
        place = tensor(match.event, octets)
        place.flags.writeable = True
        undo_layout(place, match.dumped.axis_order)[...] = each.elements
    return octets.tobytes()


def error_db(shown: CapturedValue, changed: CapturedValue) -> float | None:
    """What the damage does to the operator's own tensor: SNR in dB, None where it does nothing."""
    clean = shown.dequantized().astype(np.float64)
    error = changed.dequantized().astype(np.float64) - clean
    energy, signal = float(np.square(error).sum()), float(np.square(clean).sum())
    return 10 * float(np.log10(signal / energy)) if energy and signal else None


def error_steps(shown: CapturedValue, changed: CapturedValue) -> float:
    """The largest error in steps of the grid; in the tensor's own unit where it has none."""
    step = shown.qparams.scale[0] if shown.qparams else 1.0
    return float(np.abs(changed.dequantized().astype(np.float64) - shown.dequantized()).max(initial=0.0)) / step


def _single(real: Array) -> Array:
    return real.astype(np.float32) if real.dtype == np.float64 else real


def _stored(real: Array, like: CapturedValue) -> CapturedValue:
    elements = real if like.qparams is None else quantize(real, like.qparams)
    return replace(like, elements=elements.astype(like.elements.dtype))


def _moved(shown: CapturedValue, before: Array, after: Array) -> CapturedValue:
    if shown.qparams is not None:
        steps = quantize(after, shown.qparams) - quantize(before, shown.qparams)
        elements = np.clip(shown.elements + steps, shown.qparams.quant_min, shown.qparams.quant_max)
    elif before.dtype.kind == "f":
        elements = shown.elements + (after - before)
    else:
        elements = np.where(after == before, shown.elements, after)
    return replace(shown, elements=elements.astype(shown.elements.dtype))
