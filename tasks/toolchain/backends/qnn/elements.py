"""The element types of a scheme's activations and weights on the HTP."""

import re

from conf.schemes import SchemeConfig

_QUANT_DTYPE = re.compile(r"(fp)?(\d+)a(\d+)w")


def scheme_elements(scheme: SchemeConfig) -> tuple[str, str]:
    """Return the element types of the activations and of the weights, for example `float16` and `fixed8`."""
    dtype = _QUANT_DTYPE.match(scheme.quant_dtype or "")
    if dtype is None:
        return scheme.precision.value, scheme.precision.value
    floating, activation, weight = dtype.groups()
    return (f"float{activation}" if floating else f"fixed{activation}"), f"fixed{weight}"


def has_float_activations(scheme: SchemeConfig) -> bool:
    """Whether the scheme's activations are 16-bit floats. Even then, its weights may be quantized."""
    return scheme_elements(scheme)[0] == "float16"
