"""HTP's kernels that write a value on another grid than that on which the value is read (docs/findings.md).

- The softmax of 8 bits has a step that is a whole number of 2^-16, rounded down. So every value is 1.9 times as large
  with a step of 1.9 · 2^-16, and below 2^-16 every value is the largest of the grid.
- The cast of a 32-bit integer to a float writes the integer itself as the quantized value, and cuts it off at the ends
  of the grid. If it reads an integer of 64 bits that the same delegate narrows, the two casts are one, which is right.
"""

import math
from dataclasses import replace

from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig
from qnnsweep.tasks.records import WrittenGrid
from qnnsweep.tasks.toolchain.backends.kernel_call import CASTS, KernelCall

_SOFTMAXES = frozenset({"aten._softmax.default", "aten._safe_softmax.default"})
_OTHER_KERNELS = frozenset({OverridePrecision.cpu, OverridePrecision.float16})
_UNIT = 2.0**-16
_NO_STEP = 2.0**-40  # every value of a softmax that is not zero is the largest of such a grid
_SHORT, _SHORT_STEP = 16, 2.0**-9  # rows of at most so many elements have any step from this one on
_DIGITS = 4  # of the end of a range


def written_grid(call: KernelCall, scheme: SchemeConfig) -> WrittenGrid | None:
    """Return the grid on which a call writes its value; None if it is the grid on which the value is read."""
    asked = {scheme.overrides[index].precision for index in call.overrides}
    if len(call.qparams.scale) > 1 or asked & _OTHER_KERNELS or not call.dtype.startswith("float"):
        return None
    if call.target in _SOFTMAXES:
        return _of_softmax(call)
    reads_integer = call.source_dtype == "int32" and call.cast_dtype != "int64"
    return _of_cast(call) if call.target in CASTS and reads_integer else None


def _of_softmax(call: KernelCall) -> WrittenGrid | None:
    step, steps = call.qparams.scale[0], call.qparams.quant_max - call.qparams.quant_min
    if steps > 255 or not call.shape or (call.shape[call.arguments[1]] <= _SHORT and step >= _SHORT_STEP):
        return None
    units = math.floor(step / _UNIT)
    if step == units * _UNIT:
        return None
    return WrittenGrid(
        operator=call.index,
        quantization=replace(call.qparams, scale=(units * _UNIT or _NO_STEP,)),
        held=(0.0, _rounded_up((units + 1) * _UNIT * steps)),
    )


def _of_cast(call: KernelCall) -> WrittenGrid | None:
    written = replace(call.qparams, scale=(1.0,), zero_point=(0,))
    if written == call.qparams:
        return None
    return WrittenGrid(operator=call.index, quantization=written, held=(0.0, float(call.qparams.quant_max)))


def _rounded_up(number: float) -> float:
    """Return a number with few digits, which is at least `number`."""
    unit = 10.0 ** (math.floor(math.log10(number)) + 1 - _DIGITS)
    return float(f"{math.ceil(number / unit) * unit:.{_DIGITS}g}")
