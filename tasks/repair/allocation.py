"""The numbers of bits that the weights may have, and how many bits they may have together under a limit of the size."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.conf.units import KIB
from qnnsweep.tasks.records import LoweredMethod, LoweredProgram, Operator, WeightBits, WeightChoices
from qnnsweep.tasks.repair.facts import OperatorFacts
from qnnsweep.tasks.repair.families import weight_settings
from qnnsweep.tasks.repair.schemes import Selector, Settings, setting

_BITS = (4, 8, 16)
_CHANGE = "other bits per weight"
_KINDS: Mapping[str, tuple[str, ...]] = {
    "": ("linear layer", "depthwise convolution", "other"),
    " without depthwise convolutions": ("linear layer", "other"),
    " of linear layers alone": ("linear layer",),
}
"""Which weights may have other bits, in words: some compilers have no 4-bit or 16-bit weights for some operators."""


def choices_of(method: LoweredMethod, scheme: SchemeConfig) -> Iterator[tuple[str, list[WeightChoices]]]:
    """Yield the weights whose bits an override of the scheme can choose: all, then without those that may be refused.

    These weights have one reader, no blocks, and no override by a pattern. 16-bit weights need 16-bit activations.
    """
    for finest in (16, 8):
        for exception, kinds in _KINDS.items():
            found: list[WeightChoices] = []
            for weight in method.weights:
                reader, *others = weight.readers
                operator = method.operators[reader]
                dtype = dtype_of(operator, scheme)
                if others or dtype is None or weight.element_bits != dtype[1]:
                    continue
                if _kind(method, reader) in kinds:
                    bits = tuple(bits for bits in _BITS if bits == dtype[1] or bits <= min(finest, dtype[0]))
                    found.append(
                        WeightChoices(operator=operator.name, elements=weight.elements, now=dtype[1], element_bits=bits)
                    )
            if found:
                yield f"{_CHANGE}{'' if finest == 16 else ', 8 at most,'}{exception}", found


def dtype_of(operator: Operator, scheme: SchemeConfig) -> tuple[int, int] | None:
    """Return the bits of an operator's activations and weights by the scheme, if an override can change them."""
    node = operator.source_nodes[-1] if operator.source_nodes else ""
    found = re.fullmatch(
        r"(8|16)a(4|8|16)w", setting(scheme, Selector(node), "quant_dtype") or scheme.quant_dtype or ""
    )
    return None if found is None or not node else (int(found[1]), int(found[2]))


def settings_of_bits(
    facts: Mapping[str, OperatorFacts], bits: Iterable[WeightBits], scheme: SchemeConfig
) -> dict[str, tuple[Selector, Settings]]:
    """Return the new settings of the operators whose weights get other bits, with what these bits need beside them."""
    changed: dict[str, tuple[Selector, Settings]] = {}
    for weight in bits:
        operator = facts[weight.operator]
        dtype = dtype_of(operator.operator, scheme)
        if dtype is not None and operator.selector is not None and dtype[1] != weight.element_bits:
            new = weight_settings(operator, scheme, f"{dtype[0]}a{weight.element_bits}w")
            changed[weight.operator] = operator.selector, new
    return changed


def _kind(method: LoweredMethod, index: int) -> str:
    operator = method.operators[index]
    if "linear" in operator.target:
        return "linear layer"
    shapes = [method.operators[source].shape or () for source in operator.sources if method.operators[source].constant]
    is_depthwise = "conv" in operator.target and any(
        len(shape) > 2 and shape[1] == 1 and shape[0] > 1 for shape in shapes
    )
    return "depthwise convolution" if is_depthwise else "other"


def most_bits_of(target: TargetConfig, lowered: LoweredProgram, weights: Sequence[WeightChoices]) -> float:
    """Return how many bits these weights may have together, if all others keep theirs."""
    fixed = _bits(lowered) - sum(choices.elements * choices.now for choices in weights)
    most = most_weight_bits(target, lowered)
    return math.inf if most is None else most - fixed


def most_weight_bits(target: TargetConfig, lowered: LoweredProgram) -> float | None:
    """Return how many bits all weights may have, so that the program is as small as the target says; None for any."""
    limits: list[float] = []
    if target.effective_bits is not None:
        limits.append(target.effective_bits * _elements(lowered))
    if target.size_kib is not None:
        limits.append(_bits(lowered) + 8 * (target.size_kib * KIB - lowered.program.size))
    return min(limits, default=None)


def effective_bits(lowered: LoweredProgram) -> float | None:
    """Return the mean number of bits of an element of the weights; None for a program without weights."""
    elements = _elements(lowered)
    return _bits(lowered) / elements if elements else None


def _bits(lowered: LoweredProgram) -> float:
    return sum(method.weight_bits for method in lowered.methods)


def _elements(lowered: LoweredProgram) -> int:
    return sum(weight.elements for method in lowered.methods for weight in method.weights)
