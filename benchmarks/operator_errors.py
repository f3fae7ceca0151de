"""The kinds of damage to one operator of a capture.

A kind is a function of a scene and an operator's index. It returns None if the operator does not qualify for the kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scene import Array, Change, Scene, regridded, requantized

from qnnsweep.tasks.numerics.element_use import CapturedValue
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.records.vocabulary import Cause

OUTLIER = 8
"""An outlier channel's root mean square is this many times the median channel's."""
TOO_WIDE = 40
LEVELS = 7
"""The largest code of a weight in 4 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The undamaged value of one operator."""

    real: Array
    """The value, with the right elements where no reader uses them."""
    captured: CapturedValue
    used: Array | None
    """The elements that some reader uses; None if all are used."""


def scaled(target: Target) -> Array:
    """Apply a wrong scale, 5 % too large."""
    return target.real * 1.05


def channels_swapped(target: Target) -> Array:
    """Exchange the first and the last channel."""
    axis = _channel_axis(target.real)
    order = np.arange(target.real.shape[axis])
    order[[0, -1]] = order[[-1, 0]]
    return np.take(target.real, order, axis)


def transposed(target: Target) -> Array | None:
    """Exchange the last two axes if they have the same size."""
    real = target.real
    return np.swapaxes(real, -1, -2) if real.ndim > 1 and real.shape[-1] == real.shape[-2] else None


def clamped(target: Target) -> Array:
    """Clamp to half of the range."""
    return np.clip(target.real, target.real.min() / 2, target.real.max() / 2)


def zero_point_lost(target: Target) -> Array | None:
    """Dequantize without the zero point."""
    qparams = target.captured.qparams
    return None if qparams is None else target.real + qparams.zero_point[0] * qparams.scale[0]


def one_step_off(target: Target) -> Array | None:
    """Shift the zero point by one."""
    qparams = target.captured.qparams
    return None if qparams is None else target.real + qparams.scale[0]


def live_wiped(target: Target) -> Array | None:
    """Set the used elements to their mean, for a value of which some elements are unused: scores under a mask."""
    if target.used is None or np.count_nonzero(target.used) < 2:
        return None
    return np.where(target.used, target.real[target.used].mean(), target.real)


def live_shuffled(target: Target) -> Array | None:
    """Permute the used elements, for a value of which some elements are unused."""
    if target.used is None or np.count_nonzero(target.used) < 2:
        return None
    shuffled = target.real.copy()
    shuffled[target.used] = np.random.default_rng(0).permutation(target.real[target.used])
    return shuffled


def channel_dead(target: Target) -> Array | None:
    """Set a usual channel to zero, for a value with an outlier channel."""
    axis = _channel_axis(target.real)
    others = tuple(other for other in range(target.real.ndim) if other != axis)
    sizes = np.sqrt(np.square(target.real, dtype=np.float64).mean(others))
    usual = float(np.median(sizes))
    if len(sizes) < 3 or usual == 0 or sizes.max() < OUTLIER * usual:
        return None
    dead = np.zeros_like(sizes, np.bool_)
    dead[np.argmin(np.abs(sizes - usual))] = True
    return np.where(np.expand_dims(dead, others), 0.0, target.real)


def inverted(target: Target) -> Array:
    """Invert booleans. The device may log them as bytes."""
    return (target.real == 0).astype(target.real.dtype)


def indices_shuffled(target: Target) -> Array:
    """Move every index to the next place."""
    return np.roll(target.real.reshape(-1), 1).reshape(target.real.shape)


def range_clipped(scene: Scene, index: int) -> Change | None:
    """Give an operator a grid that was calibrated to half of its range. The device saturates."""
    qparams, real = _own_grid(scene, index)
    if qparams is None:
        return None
    least, most = min(float(real.min()) / 2, 0.0), max(float(real.max()) / 2, 0.0)
    scale = (most - least) / (qparams.quant_max - qparams.quant_min)
    if scale == 0:
        return None
    zero_point = int(np.clip(round(qparams.quant_min - least / scale), qparams.quant_min, qparams.quant_max))
    return Change(values={index: regridded(scene, index, replace(qparams, scale=(scale,), zero_point=(zero_point,)))})


def grid_too_wide(scene: Scene, index: int) -> Change | None:
    """Give an operator a grid whose range is 40 times too wide."""
    qparams, _ = _own_grid(scene, index)
    if qparams is None:
        return None
    wide = replace(qparams, scale=tuple(TOO_WIDE * scale for scale in qparams.scale))
    return Change(values={index: regridded(scene, index, wide)})


def weights_in_4_bits(scene: Scene, index: int) -> Change | None:
    """Round the weights of a layer to 15 levels per channel. The device computes with these weights."""
    for name in scene.weight_names(index):
        codes = scene.graph.constants[name].numpy()
        if codes.ndim < 2 or codes.dtype != np.int8:
            continue
        levels = np.rint(codes.astype(np.float64) * (LEVELS / 127))
        rounded = np.rint(levels * (127 / LEVELS)).astype(np.int8)
        if not np.array_equal(rounded, codes):
            return scene.with_weight(name, rounded)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of damage, and what the comparison should say about it."""

    change: Callable[[Scene, int], Change | None]
    cause: Cause
    within_tolerance: bool = False
    """Whether a damage counts even if no element is off by more than the operator's tolerance in steps."""


def _to_tensor(damage: Callable[[Target], Array | None], *, dtypes: tuple[str, ...] = ("float",)):
    def change(scene: Scene, index: int) -> Change | None:
        captured = scene.captured[index]
        if captured.elements.size < 2 or not (scene.lowered.operators[index].dtype or "").startswith(dtypes):
            return None
        target = Target(real=scene.real(index), captured=captured, used=scene.used(index))
        real = damage(target)
        return None if real is None else Change(values={index: requantized(real, captured)})

    return change


KINDS: Mapping[str, Kind] = {
    **{
        damage.__name__: Kind(change=_to_tensor(damage), cause="device")
        for damage in (scaled, channels_swapped, transposed, clamped, zero_point_lost, live_wiped, live_shuffled)
    },
    "channel_dead": Kind(change=_to_tensor(channel_dead), cause="device"),
    "one_step_off": Kind(change=_to_tensor(one_step_off), cause="device", within_tolerance=True),
    "inverted": Kind(change=_to_tensor(inverted, dtypes=("bool",)), cause="device", within_tolerance=True),
    "indices_shuffled": Kind(
        change=_to_tensor(indices_shuffled, dtypes=("int", "uint")), cause="device", within_tolerance=True
    ),
    "range_clipped": Kind(change=range_clipped, cause="clipping", within_tolerance=True),
    "grid_too_wide": Kind(change=grid_too_wide, cause="resolution", within_tolerance=True),
    "weights_in_4_bits": Kind(change=weights_in_4_bits, cause="weights", within_tolerance=True),
}


def error_db(original: CapturedValue, changed: CapturedValue) -> float | None:
    """Return the SNR in dB of the damaged tensor against the original. None if they are equal."""
    clean = original.dequantized().astype(np.float64)
    error = changed.dequantized().astype(np.float64) - clean
    energy, signal = float(np.square(error).sum()), float(np.square(clean).sum())
    return 10 * math.log10(signal / energy) if energy and signal else None


def error_steps(original: CapturedValue, changed: CapturedValue, counted: Array) -> float:
    """Return the largest error in the original's quantization steps, or in the tensor's own unit if it has no grid.

    `counted`: a mask of the elements that count.
    """
    step = original.qparams.scale[0] if original.qparams else 1.0
    error = changed.dequantized().astype(np.float64) - original.dequantized()
    return float(np.abs(error[counted]).max(initial=0.0)) / step


def _channel_axis(real: Array) -> int:
    """Return the axis of the channels: 1 for an image, the last axis for other tensors."""
    return 1 if real.ndim == 4 else real.ndim - 1


def _own_grid(scene: Scene, index: int) -> tuple[Quantization | None, Array]:
    """Return an operator's grid per tensor, None if the device does not round the value to such a grid."""
    captured, on_host = scene.captured[index], scene.on_host.get(index)
    qparams = captured.qparams
    rounds = index not in scene.kernels.clamped and isinstance(on_host, np.ndarray) and captured.elements.size > 1
    return (qparams if qparams is not None and len(qparams.scale) == 1 and rounds else None), scene.real(index)
