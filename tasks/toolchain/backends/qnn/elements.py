"""The element types of a scheme's activations and weights on the HTP."""

import re
from dataclasses import replace

from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride

_QUANT_DTYPE = re.compile(r"(fp)?(\d+)a(\d+)w")


def scheme_elements(scheme: SchemeConfig) -> tuple[str, str]:
    """Return the element types of the activations and of the weights, for example `float16` and `fixed8`."""
    dtype = _QUANT_DTYPE.match(scheme.quant_dtype or "")
    if dtype is None:
        return scheme.precision.value, scheme.precision.value
    floating, activation, weight = dtype.groups()
    return (f"float{activation}" if floating else f"fixed{activation}"), f"fixed{weight}"


def activation_element(scheme: SchemeConfig, override: SchemeOverride) -> str:
    """Return the element type of the results of operators with these settings."""
    if override.precision is OverridePrecision.float16:
        return override.precision.value
    return scheme_elements(replace(scheme, quant_dtype=override.quant_dtype or scheme.quant_dtype))[0]


def has_float_activations(scheme: SchemeConfig) -> bool:
    """Whether the scheme's activations are 16-bit floats. Even then, its weights may be quantized."""
    return scheme_elements(scheme)[0] == "float16"


def needs_floats(scheme: SchemeConfig) -> bool:
    """Whether some operators compute in 16-bit float, so that the compiler must allow floats."""
    return has_float_activations(scheme) or any(
        override.precision is OverridePrecision.float16 for override in scheme.overrides
    )
