"""The families of changes. The changes of a family should remove the same causes of error in the same way.

An offer of a family to an operator is the new settings of the operator's node. How much an offer really removes is not
known before it is tried: see `qnnsweep.tasks.repair.prediction`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qnnsweep.conf.overrides import SETTINGS
from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig
from qnnsweep.tasks.records import Quantization
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.facts import OperatorFacts
from qnnsweep.tasks.repair.schemes import Settings, setting

OfferOf = Callable[[OperatorFacts, SchemeConfig], Settings | None]

_MARGIN = 0.1  # how much wider than the values of the captured samples a fixed range is, at both ends
_DISCARDED = 20.0  # softmax gives a score that is smaller than the largest by 20 a weight of e^-20, which is nothing
_OF_USE = 0.5  # a range is fitted if at most this part of the energy of the rounding is left
_DIGITS = 4  # of the ends of a fixed range
_WRONG_STEPS = 2.5  # at an end of the range that a kernel holds: with fewer, its grid stays
_FINER = {
    "16a2w": "16a8w", "16a4w": "16a8w", "16a4w_block": "16a8w", "8a4w": "8a8w", "16a8w": "16a16w", "8a8w": "16a16w",
}  # fmt: skip
"""Per dtype, the dtype with more bits for the weights. The HTP has 16-bit weights only with 16-bit activations."""
WIDER = {"8a4w": "16a4w", "8a8w": "16a8w"}
"""Per dtype, the dtype with 16-bit activations."""
_BLOCK = 16
_BLOCKED = ("16a4w",)
"""The dtypes whose weights can have one scale per block instead of one per channel. Their activations have 16 bits."""
_WITH_WEIGHT = ("aten.convolution", "aten.linear")
_LEAST_ERROR = "HistogramObserver"  # it searches the range with the smallest squared error
_UNDO = 0.5  # the cost of removing a setting: the scheme becomes simpler
_KNOWN = 0.5  # the cost of a change whose whole effect is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    causes: tuple[Cause, ...]
    """The causes of error that the change should remove, the one that it is for first."""
    change: str
    """What the change does, such as `16-bit activations`."""
    offer: OfferOf
    """Returns the new settings of an operator; None if the operator cannot be changed in this way."""
    with_readers: bool = False
    """Whether the operators that read a value must change too, because they would round it again."""
    weight_bits: float = 0
    """How many bits a weight has more."""
    activation_bits: int = 0
    """How many bits an activation has more."""
    is_known: bool = False
    """Whether the model of the arithmetic has the error that the change removes. An operator passes this error on to
    others, so that the whole error of the cause counts."""
    replaces_kernel: bool = False
    """Whether another kernel, which is right, then computes the operators. The device's own error at them certainly
    goes, although no trial on the host shows it."""
    for_all: bool = False
    """Whether the change is for all operators that can have it, whatever their own error is, and is tried first."""
    with_group: bool = False
    """Whether the operators that have the same grid, and read each other, must change too."""
    with_later: bool = False
    """Whether the later operators that can be changed in this way must change too."""
    cost: float = 1.0
    """The cost of the change itself."""
    operator_cost: float = 0.02
    """The additional cost per operator."""


def _dtype(operator: OperatorFacts, scheme: SchemeConfig) -> str:
    return _setting(operator, scheme, "quant_dtype") or scheme.quant_dtype or ""


def _setting(operator: OperatorFacts, scheme: SchemeConfig, name: str) -> Any:
    return setting(scheme, operator.selector, name) if operator.selector is not None else None


def merged_settings(merged: OperatorFacts, settings: Settings, scheme: SchemeConfig) -> Settings | None:
    """Return what an operator needs so that it is still merged with the operator that gets `settings`; None if nothing.

    Without it, the value between them would be rounded to the 8-bit grid before the clamp, which is much wider.
    """
    if (precision := settings.get("precision")) is not None:
        return dict.fromkeys(SETTINGS) | {"precision": precision}
    wider = WIDER.get(_dtype(merged, scheme))
    asked = settings.get("quant_dtype")
    return {"quant_dtype": wider} if wider is not None and asked is not None and asked.startswith("16a") else None


def fitted_range(operator: OperatorFacts) -> tuple[float, float] | None:
    """Return the range of the operator's used values with a margin; None if the values are not known.

    If softmax reads the values, the range reaches so far down that softmax still discards what it discarded.
    """
    if operator.least is None or operator.largest is None:
        return None
    margin = _MARGIN * (operator.largest - operator.least)
    least = operator.least - margin if operator.least < 0 else 0.0
    largest = operator.largest + margin if operator.largest > 0 else 0.0
    if operator.before_softmax:
        least -= _DISCARDED
    return (_rounded(least), _rounded(largest)) if least < largest else None


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _step_ratio(operator: OperatorFacts) -> float | None:
    """Return the step of a grid that fits the operator's values, divided by the step of its grid."""
    ends, fitted = operator.ends, fitted_range(operator)
    return None if ends is None or fitted is None else (fitted[1] - fitted[0]) / (ends[1] - ends[0])


def _fixed_range(fitted: tuple[float, float]) -> Settings:
    # An observer and the grid of a clamp would contradict a fixed range.
    return {"range": list(fitted), "observer": None, "share_clamp": None}


def _holds_values(operator: OperatorFacts) -> Settings | None:
    ends, fitted = operator.ends, fitted_range(operator)
    if ends is None or fitted is None or not operator.is_too_wide:
        return None
    # Values of other samples, which were not captured, can need the rest of the calibrated range.
    return _fixed_range((min(ends[0], fitted[0]), max(ends[1], fitted[1])))


def _fits_values(operator: OperatorFacts) -> Settings | None:
    ratio, fitted = _step_ratio(operator), fitted_range(operator)
    return None if ratio is None or fitted is None or ratio**2 > _OF_USE else _fixed_range(fitted)


def _holds_written(operator: OperatorFacts, _: SchemeConfig) -> Settings | None:
    written, qparams = operator.written, operator.operator.quantization
    if written is None or qparams is None:
        return None
    least, largest = written.held
    if (operator.least or 0.0) < least or (operator.largest or 0.0) > largest:
        return None
    wrong_steps = _codes(largest, qparams) - _codes(largest, written.quantization)
    wrong_steps = max(abs(wrong_steps), abs(_codes(least, qparams) - _codes(least, written.quantization)))
    # The range has few digits, so that the two grids are never quite equal.
    return _fixed_range((least, largest)) if wrong_steps > _WRONG_STEPS else None


def _codes(value: float, qparams: Quantization) -> float:
    """Return a value as a quantized value that is neither rounded nor clipped."""
    return value / qparams.scale[0] + qparams.zero_point[0]


def _calibrated(fits: Callable[[OperatorFacts], Settings | None]) -> OfferOf:
    """Return the offers to remove a fixed range, where a range that fits the values would help."""
    return lambda operator, scheme: (
        None if _setting(operator, scheme, "range") is None or fits(operator) is None else {"range": None}
    )


def _fixed(fits: Callable[[OperatorFacts], Settings | None]) -> OfferOf:
    """Return the offers to fix the range of a value that has no fixed range yet."""
    return lambda operator, scheme: fits(operator) if _setting(operator, scheme, "range") is None else None


def _with_constant(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    """Return the offer of one fixed range for the result and for the constant that the operator adds to a value."""
    fitted = _fits_values(operator)
    if fitted is None or not operator.reads_constant or _setting(operator, scheme, "constant_range") is not None:
        return None
    return {**fitted, "constant_range": fitted["range"]}


def _least_error(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    if (_setting(operator, scheme, "observer") or scheme.observer) == _LEAST_ERROR or operator.ends is None:
        return None
    if _setting(operator, scheme, "range") is not None or _setting(operator, scheme, "share_clamp"):
        return None
    return {"observer": _LEAST_ERROR}


def _wide_activations(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    wider = WIDER.get(_dtype(operator, scheme))
    if wider is None or operator.steps is None or operator.steps > 255:
        return None
    return {"quant_dtype": wider}


def _scheme_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    coarse = _setting(operator, scheme, "quant_dtype")
    if coarse is None or _FINER.get(coarse) != scheme.quant_dtype:
        return None
    of_16_bits = _of_16_bits(operator) if coarse == "16a8w" else {}
    return {"quant_dtype": None, "block_size": None, **of_16_bits}


def _finer(operator: OperatorFacts, scheme: SchemeConfig, bits: int) -> str | None:
    """Return the dtype with weights of so many bits; None if it is no change."""
    finer = _FINER.get(_dtype(operator, scheme), "")
    return None if not operator.weights or not finer.endswith(f"a{bits}w") or finer == scheme.quant_dtype else finer


def _block_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    """Return the offer of one scale per block. HTP computes convolutions with blocks and larger kernels wrongly."""
    shape = operator.weight_shape
    if _dtype(operator, scheme) not in _BLOCKED or len(shape) < 2 or shape[1] % _BLOCK or math.prod(shape[2:]) != 1:
        return None
    return {"quant_dtype": f"{_dtype(operator, scheme)}_block", "block_size": [1, _BLOCK, *shape[2:]]}


def _8_bit_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    finer = _finer(operator, scheme, 8)
    return None if finer is None else {"quant_dtype": finer, "block_size": None}


def _16_bit_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    finer = _finer(operator, scheme, 16)
    return None if finer is None else {"quant_dtype": finer, **_of_16_bits(operator)}


def _fitted_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    is_fine = operator.weights and _has_kernel(operator) and _dtype(operator, scheme).endswith("a16w")
    return {"fit_weights": True} if is_fine and not _setting(operator, scheme, "fit_weights") else None


def _has_kernel(operator: OperatorFacts) -> bool:
    """Return whether HTP computes the operator by a kernel that holds no 16-bit weight above its limit."""
    return operator.operator.target.startswith(_WITH_WEIGHT)


def _of_16_bits(operator: OperatorFacts) -> Settings:
    """Return what an operator with 16-bit weights needs beside them."""
    return {**({"fit_weights": True} if _has_kernel(operator) else {}), **_room_for_bias(operator)}


def _coarse_activations(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    return {"quant_dtype": "8a8w"} if _dtype(operator, scheme) == "16a8w" else None


def _room_for_bias(operator: OperatorFacts) -> Settings:
    # Finer grids leave less room for the bias, so that the step of the weight must not be as fine as it could be.
    use = operator.bias_use
    return {} if use is None else {"least_weight_scale": _rounded(use.least_scale_16)}


_NO_16_BITS: Settings = {"fit_weights": None, "least_weight_scale": None}


def weight_settings(operator: OperatorFacts, scheme: SchemeConfig, dtype: str) -> Settings:
    """Return the settings with which an operator's weight has the bits of `dtype`. Its activations keep their bits."""
    finest, now = ("a16w" in text for text in (dtype, _dtype(operator, scheme)))
    of_16_bits = _of_16_bits(operator) if finest else _NO_16_BITS if now else {}
    return {"quant_dtype": None if dtype == scheme.quant_dtype else dtype, "block_size": None, **of_16_bits}


def _is_per_channel(operator: OperatorFacts, scheme: SchemeConfig) -> bool:
    per_channel = _setting(operator, scheme, "per_channel")
    if per_channel is not None:
        return per_channel
    return scheme.per_channel_conv if "conv" in operator.operator.target else scheme.per_channel_linear


def _per_channel(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    return None if not operator.weights or _is_per_channel(operator, scheme) else {"per_channel": True}


def _floor(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    if operator.bias_use is None or not _is_per_channel(operator, scheme):
        return None
    floor = _rounded(operator.bias_use.least_scale)
    return (
        None
        if floor <= 0 or floor <= (_setting(operator, scheme, "least_weight_scale") or 0)
        else {"least_weight_scale": floor}
    )


def _one_scale(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    return {"per_channel": False} if operator.weights and _is_per_channel(operator, scheme) else None


def _clamp_grid(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
    shares = _setting(operator, scheme, "share_clamp")
    if shares or not operator.before_clamp or operator.ends is None:
        return None
    return {"share_clamp": True, "observer": None, "symmetric": None}


def _as_conv2d(called: str) -> OfferOf:
    """Return the offers of another form to the operators that a function computes. `called`: begins its name."""

    def offer(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
        is_value = operator.operator.subgraph is not None and operator.operator.shape is not None
        if not operator.called.startswith(called) or not is_value:
            return None
        if _setting(operator, scheme, "as_conv2d") or _setting(operator, scheme, "precision") is not None:
            return None
        return {"as_conv2d": True}

    return offer


def _on(precision: OverridePrecision) -> OfferOf:
    def offer(operator: OperatorFacts, scheme: SchemeConfig) -> Settings | None:
        if _setting(operator, scheme, "precision") is not None or operator.operator.subgraph is None:
            return None
        return dict.fromkeys(SETTINGS) | {"precision": precision}

    return offer


_LINEAR, _BATCH_NORM = "aten.linear", "aten._native_batch_norm_legit_no_training"
_CALIBRATED, _CLAMP, _FLOAT = "the calibrated range", "the grid of the clamp", "16-bit float"
_STEPS: tuple[Cause, ...] = ("resolution", "device")
"""What finer steps remove: the device's error is a matter of them, too."""
FAMILIES = (
    Family(causes=("clipping", *_STEPS), change=_CALIBRATED, offer=_calibrated(_holds_values), cost=_UNDO),
    Family(causes=(*_STEPS, "clipping"), change=_CALIBRATED, offer=_calibrated(_fits_values), cost=_UNDO),
    Family(
        causes=("clipping",),
        change="a wider fixed range",
        offer=_fixed(_holds_values),
        with_group=True,
        with_later=True,
        operator_cost=0.0,
    ),
    Family(
        causes=(*_STEPS, "clipping"),
        change="a narrower fixed range for the result and the constant",
        offer=_with_constant,
        cost=0.9,
    ),
    Family(causes=(*_STEPS, "clipping"), change="a narrower fixed range", offer=_fixed(_fits_values), with_group=True),
    Family(causes=_STEPS, change=_CLAMP, offer=_clamp_grid),
    Family(
        causes=("device",),
        change="a range that the device's kernel holds",
        offer=_holds_written,
        is_known=True,
        for_all=True,
        cost=_KNOWN,
    ),
    Family(
        causes=("device",),
        change="a depthwise convolution",
        offer=_as_conv2d(_BATCH_NORM),
        replaces_kernel=True,
        for_all=True,
        cost=_KNOWN,
        operator_cost=0.0,
    ),
    Family(causes=_STEPS, change="16-bit activations", offer=_wide_activations, with_readers=True, activation_bits=8),
    # A guess: it comes after all changes that certainly have an effect.
    Family(causes=("resolution",), change="the range with the least error", offer=_least_error, cost=10.0),
    Family(causes=("bias",), change="a larger least scale of the weights", offer=_floor, cost=_UNDO),
    Family(causes=("bias", "weights"), change="one scale for the weights", offer=_one_scale),
    Family(causes=("weights",), change="the scheme's weights", offer=_scheme_weights, weight_bits=4, cost=_UNDO),
    Family(causes=("weights",), change="larger steps of the 16-bit weights", offer=_fitted_weights, cost=_UNDO),
    Family(causes=("weights",), change="one scale per channel", offer=_per_channel),
    Family(causes=("weights",), change="one scale per block of weights", offer=_block_weights, weight_bits=4 / _BLOCK),
    Family(causes=("weights",), change="8-bit weights", offer=_8_bit_weights, weight_bits=4),
    Family(causes=("weights",), change="16-bit weights", offer=_16_bit_weights, weight_bits=8, activation_bits=8),
    Family(
        causes=("weights", "device"),
        change=_FLOAT,
        offer=_on(OverridePrecision.float16),
        weight_bits=8,
        activation_bits=8,
        operator_cost=0.5,
    ),
    # HTP has other kernels for other bits. Whether these compute rightly, only a device can show.
    Family(causes=("device",), change="16-bit weights", offer=_16_bit_weights, weight_bits=8),
    Family(
        causes=("device",), change="16-bit activations", offer=_wide_activations, with_readers=True, activation_bits=8
    ),
    Family(causes=("device",), change="8-bit activations", offer=_coarse_activations, cost=4.0),
    Family(causes=("device",), change="the form of a convolution", offer=_as_conv2d(_LINEAR), cost=10.0),
    Family(
        causes=("device",), change=_FLOAT, offer=_on(OverridePrecision.float16), activation_bits=8, operator_cost=0.5
    ),
    Family(
        causes=("device",),
        change="the CPU",
        offer=_on(OverridePrecision.cpu),
        replaces_kernel=True,
        activation_bits=24,
        operator_cost=2.0,
    ),
)
"""All families. A family that is earlier in the list comes first among equals."""
