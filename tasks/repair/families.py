"""The families of changes. The changes of a family remove the same cause of error in the same way.

An offer of a family to an operator is the new settings of the operator's node and, by cause, the factor of the energy
of the operator's error that is left.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qnnsweep.conf.overrides import SETTINGS
from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.facts import OperatorFacts
from qnnsweep.tasks.repair.schemes import Settings, setting

Offer = tuple[Settings, Mapping[Cause, float]]
OfferOf = Callable[[OperatorFacts, SchemeConfig], Offer | None]

_MARGIN = 0.1  # how much wider than the values of the captured samples a fixed range is, at both ends
_DISCARDED = 20.0  # softmax gives a score that is smaller than the largest by 20 a weight of e^-20, which is nothing
_OF_USE = 0.5  # a range is fitted if at most this part of the energy of the rounding is left
_DIGITS = 4  # of the ends of a fixed range
_FINER = {
    "16a2w": ("16a8w", 63**2), "16a4w": ("16a8w", 17**2), "16a4w_block": ("16a8w", 17**2), "8a4w": ("8a8w", 17**2),
    "16a8w": ("16a16w", 257**2), "8a8w": ("16a16w", 257**2),
}  # fmt: skip
"""Per dtype, the dtype with more bits for the weights, and the energy of the rounding divided by that which is left.

The HTP has 16-bit weights only with 16-bit activations.
"""
_WIDER = {"8a4w": "16a4w", "8a8w": "16a8w"}
"""Per dtype, the dtype with 16-bit activations."""
_WIDER_LEAVES = 1 / 257**2
_PER_CHANNEL_LEAVES = 0.25  # a guess: with one scale per channel, most channels have a smaller step
_BLOCK = 16
_BLOCKED = ("16a4w",)
"""The dtypes whose weights can have one scale per block instead of one per channel. Their activations have 16 bits."""
_BLOCKS_LEAVE = 0.35  # a guess: of normally distributed weights, the largest of a block is 0.6 of that of a channel
_LEAST_ERROR = "HistogramObserver"  # it searches the range with the smallest squared error
_LEAST_ERROR_LEAVES = 0.5  # a guess: how much the range shrinks depends on all values, of which only the ends are known
_UNDO = 0.5  # the cost of removing a setting: the scheme becomes simpler
_FLOAT_LEAVES = 1e-3  # the rounding to the 11 bits of a 16-bit float


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    cause: Cause
    change: str
    """What the change does, such as `16-bit activations`."""
    offer: OfferOf
    """Returns what the change does to an operator; None if the operator cannot be changed in this way."""
    with_readers: bool = False
    """Whether the operators that read a value must change too, because they would round it again."""
    weight_bits: float = 0
    """How many bits a weight has more."""
    activation_bits: int = 0
    """How many bits an activation has more."""
    cost: float = 1.0
    """The cost of the change itself."""
    operator_cost: float = 0.02
    """The additional cost per operator."""


def _dtype(operator: OperatorFacts, scheme: SchemeConfig) -> str:
    return _setting(operator, scheme, "quant_dtype") or scheme.quant_dtype or ""


def _setting(operator: OperatorFacts, scheme: SchemeConfig, name: str) -> Any:
    return setting(scheme, operator.node, name) if operator.node is not None else None


def merged_settings(merged: OperatorFacts, settings: Settings, scheme: SchemeConfig) -> Settings | None:
    """Return what an operator needs so that it is still merged with the operator that gets `settings`; None if nothing.

    Without it, the value between them would be rounded to the 8-bit grid before the clamp, which is much wider.
    """
    if (precision := settings.get("precision")) is not None:
        return dict.fromkeys(SETTINGS) | {"precision": precision}
    wider = _WIDER.get(_dtype(merged, scheme))
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


def _of_steps(operator: OperatorFacts, factor: float) -> dict[Cause, float]:
    """Return what is left of the causes that are a matter of the grid's steps. `factor`: of the rounding's energy."""
    return {"resolution": factor, "device": factor} if operator.feels_steps else {"resolution": factor}


def _fixed_range(fitted: tuple[float, float]) -> Settings:
    # An observer and the grid of a clamp would contradict a fixed range.
    return {"range": list(fitted), "observer": None, "share_clamp": None}


def _holds_values(operator: OperatorFacts) -> Offer | None:
    ratio, fitted = _step_ratio(operator), fitted_range(operator)
    if ratio is None or fitted is None or not operator.clipped_elements:
        return None
    return _fixed_range(fitted), {"clipping": 0.0, **_of_steps(operator, ratio**2)}


def _fits_values(operator: OperatorFacts) -> Offer | None:
    ratio, fitted = _step_ratio(operator), fitted_range(operator)
    if ratio is None or fitted is None or ratio**2 > _OF_USE:
        return None
    return _fixed_range(fitted), {"clipping": 0.0, **_of_steps(operator, ratio**2)}


def _calibrated(fits: Callable[[OperatorFacts], Offer | None]) -> OfferOf:
    """Return the offers to remove a fixed range, where a range that fits the values would help."""

    def offer(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
        fitting = None if _setting(operator, scheme, "range") is None else fits(operator)
        return None if fitting is None else ({"range": None}, fitting[1])

    return offer


def _fixed(fits: Callable[[OperatorFacts], Offer | None]) -> OfferOf:
    """Return the offers to fix the range of a value that has no fixed range yet."""
    return lambda operator, scheme: fits(operator) if _setting(operator, scheme, "range") is None else None


def _least_error(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    if (_setting(operator, scheme, "observer") or scheme.observer) == _LEAST_ERROR or operator.ends is None:
        return None
    if _setting(operator, scheme, "range") is not None or _setting(operator, scheme, "share_clamp"):
        return None
    return {"observer": _LEAST_ERROR}, _of_steps(operator, _LEAST_ERROR_LEAVES)


def _wide_activations(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    wider = _WIDER.get(_dtype(operator, scheme))
    if wider is None or operator.steps is None or operator.steps > 255:
        return None
    return {"quant_dtype": wider}, _of_steps(operator, _WIDER_LEAVES)


def _scheme_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    coarse = _setting(operator, scheme, "quant_dtype")
    if coarse is None or _FINER.get(coarse, ("",))[0] != scheme.quant_dtype:
        return None
    return {"quant_dtype": None, "block_size": None}, {"weights": 1 / _FINER[coarse][1]}


def _finer(operator: OperatorFacts, scheme: SchemeConfig, bits: int) -> tuple[str, float] | None:
    """Return the dtype with weights of so many bits, and the factor of their energy that is left."""
    finer, gain = _FINER.get(_dtype(operator, scheme), ("", 1))
    if not operator.weights or not finer.endswith(f"a{bits}w") or finer == scheme.quant_dtype:
        return None
    return finer, 1 / gain


def _block_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    """Return the offer of one scale per block. HTP computes convolutions with blocks and larger kernels wrongly."""
    shape = operator.weight_shape
    if _dtype(operator, scheme) not in _BLOCKED or len(shape) < 2 or shape[1] % _BLOCK or math.prod(shape[2:]) != 1:
        return None
    block = [1, _BLOCK, *shape[2:]]
    return {"quant_dtype": f"{_dtype(operator, scheme)}_block", "block_size": block}, {"weights": _BLOCKS_LEAVE}


def _8_bit_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    finer = _finer(operator, scheme, 8)
    return None if finer is None else ({"quant_dtype": finer[0], "block_size": None}, {"weights": finer[1]})


def _16_bit_weights(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    finer, use = _finer(operator, scheme, 16), operator.bias_use
    if finer is None:
        return None
    dtype, left = finer
    if use is None or (use.per_channel if _is_per_channel(operator, scheme) else use.per_tensor) <= 1:
        return {"quant_dtype": dtype}, {"weights": left}
    if use.per_tensor <= 1:
        # The energy of a rounding grows at most by the number of channels, if a single one has the largest weights.
        return {"quant_dtype": dtype, "per_channel": False}, {"weights": min(left * use.channels, 1.0)}
    return None


def _is_per_channel(operator: OperatorFacts, scheme: SchemeConfig) -> bool:
    per_channel = _setting(operator, scheme, "per_channel")
    if per_channel is not None:
        return per_channel
    return scheme.per_channel_conv if "conv" in operator.operator.target else scheme.per_channel_linear


def _per_channel(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    if not operator.weights or _is_per_channel(operator, scheme):
        return None
    use = operator.bias_use
    if _dtype(operator, scheme) == "16a16w" and use is not None and use.per_channel > 1:
        return None
    return {"per_channel": True}, {"weights": _PER_CHANNEL_LEAVES}


def _clamp_grid(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    shares = _setting(operator, scheme, "share_clamp")
    if shares or not operator.before_clamp or operator.ends is None:
        return None
    return {"share_clamp": True, "observer": None, "symmetric": None}, {"clipping": 0.0, **_of_steps(operator, 0.0)}


def _as_conv2d(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
    if not operator.operator.target.startswith(_LINEARS) or operator.operator.subgraph is None:
        return None
    if _setting(operator, scheme, "as_conv2d") or _setting(operator, scheme, "precision") is not None:
        return None
    return {"as_conv2d": True}, {"device": _OTHER_FORM_LEAVES}


def _on(precision: OverridePrecision) -> OfferOf:
    left = 0.0 if precision is OverridePrecision.cpu else _FLOAT_LEAVES
    causes: tuple[Cause, ...] = ("weights", "device")

    def offer(operator: OperatorFacts, scheme: SchemeConfig) -> Offer | None:
        if _setting(operator, scheme, "precision") is not None or operator.operator.subgraph is None:
            return None
        return dict.fromkeys(SETTINGS) | {"precision": precision}, dict.fromkeys(causes, left)

    return offer


_LINEARS = "aten.linear"
_OTHER_FORM_LEAVES = 0.5  # a guess: whether another kernel computes the same is not known before it is measured
_CALIBRATED, _CLAMP, _FLOAT = "the calibrated range", "the grid of the clamp", "16-bit float"
FAMILIES = (
    Family(cause="clipping", change=_CALIBRATED, offer=_calibrated(_holds_values), cost=_UNDO),
    Family(cause="resolution", change=_CALIBRATED, offer=_calibrated(_fits_values), cost=_UNDO),
    Family(cause="clipping", change="a wider fixed range", offer=_fixed(_holds_values)),
    Family(cause="resolution", change="a narrower fixed range", offer=_fixed(_fits_values)),
    Family(cause="resolution", change=_CLAMP, offer=_clamp_grid),
    Family(
        cause="resolution", change="16-bit activations", offer=_wide_activations, with_readers=True, activation_bits=8
    ),
    # The cost of a guess: it comes after all changes whose gain is known.
    Family(cause="resolution", change="the range with the least error", offer=_least_error, cost=10.0),
    Family(cause="weights", change="the scheme's weights", offer=_scheme_weights, weight_bits=4, cost=_UNDO),
    Family(cause="weights", change="one scale per channel", offer=_per_channel),
    Family(cause="weights", change="one scale per block of weights", offer=_block_weights, weight_bits=4 / _BLOCK),
    Family(cause="weights", change="8-bit weights", offer=_8_bit_weights, weight_bits=4),
    Family(cause="weights", change="16-bit weights", offer=_16_bit_weights, weight_bits=8, activation_bits=8),
    Family(
        cause="weights",
        change=_FLOAT,
        offer=_on(OverridePrecision.float16),
        weight_bits=8,
        activation_bits=8,
        operator_cost=0.5,
    ),
    Family(cause="device", change="the form of a convolution", offer=_as_conv2d, cost=10.0),
    Family(cause="device", change=_FLOAT, offer=_on(OverridePrecision.float16), activation_bits=8, operator_cost=0.5),
    Family(cause="device", change="the CPU", offer=_on(OverridePrecision.cpu), activation_bits=24, operator_cost=2.0),
)
"""All families. A family that is earlier in the list comes first among equals."""
