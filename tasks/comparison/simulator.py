"""A device's tensors against those of this machine's simulator, which executed the same programs on the same inputs.

Both execute the same compiled graph. So every difference is one of their arithmetic, or of what carries the tensors.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.comparison.evidence import half_operators, inferences
from qnnsweep.tasks.comparison.runtimes import before_the_cpu
from qnnsweep.tasks.numerics.align import align
from qnnsweep.tasks.numerics.arithmetic import read_half
from qnnsweep.tasks.records import CapturedMethod, LoweredMethod
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor

Array = NDArray[Any]
_SIGN, _MAGNITUDE = 0x8000, 0x7FFF
"""The bits of a float16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatorDifference:
    """How a device's tensors differ from the simulator's."""

    equal: float | None
    """The share of the elements, of all logged tensors and final outputs, that are equal code by code; None if none was
    compared."""
    steps: float | None
    """The largest difference of two codes, in steps; None if no tensor has codes."""
    why: str | None
    """The tensor at which the difference begins; None without a difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tensor:
    """A tensor that a device returned. `has_codes`: whether its elements are codes of a grid, or those of float16."""

    name: str
    elements: Array
    has_codes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """The same tensor, from the device and from the simulator."""

    device: _Tensor
    simulated: _Tensor

    @property
    def fits(self) -> bool:
        """Whether the elements can be compared. A boolean of QNN is logged as uint8 by one of the runtimes."""
        device, simulated = self.device.elements, self.simulated.elements
        return (device.itemsize, device.shape) == (simulated.itemsize, simulated.shape)

    @property
    def size(self) -> int:
        return max(self.device.elements.size, self.simulated.elements.size)

    @property
    def unequal(self) -> int:
        """Return the number of elements that differ in a bit: all of them for tensors of other shapes or sizes."""
        if not self.fits:
            return self.size
        bits = f"u{self.device.elements.dtype.itemsize}"
        device, simulated = (np.ascontiguousarray(one.elements).view(bits) for one in (self.device, self.simulated))
        return int(np.count_nonzero(device != simulated))

    @property
    def largest(self) -> float | None:
        """Return the largest absolute difference, of codes in steps; None if it is not finite."""
        if not self.fits:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            device, simulated = _ordered(self.device), _ordered(self.simulated)
            error = np.where(device == simulated, 0.0, np.abs(device - simulated))
        largest = float(error.max(initial=0.0))
        return largest if np.isfinite(largest) else None

    @property
    def described(self) -> str:
        """Return how many elements differ, and by how much."""
        largest = self.largest
        unit = "" if not self.device.has_codes else " step" if largest == 1 else " steps"
        size = "" if largest is None else f", by up to {largest:.3g}{unit}"
        return f"{self.unequal} of {self.size} elements differ{size}"


def against_simulator(
    lowered: LoweredMethod, capture: CapturedMethod, simulated: CapturedMethod, store: Store
) -> SimulatorDifference:
    """Compare the tensors of a device with those of the simulator, code by code.

    What can depend on an operator on the CPU is left out: each runtime has kernels of its own. A float16 is compared as
    such: each of the two converts it to float32 in its own way. A debug program that fails on the device alone is a
    difference. Raises EvidenceError if a capture does not agree with its record.
    """
    if simulated.debug and not capture.debug:
        failure = next(iter(capture.failures.values()), "it was not executed")
        return SimulatorDifference(equal=None, steps=None, why=f"the debug program, which the simulator ran: {failure}")
    logged = [
        pair
        for pair in _pairs(_logged(lowered, capture, store), _logged(lowered, simulated, store))
        if pair.device.elements.itemsize == pair.simulated.elements.itemsize  # ExecuTorch logs an int64 as uint8
    ]
    outputs = _pairs(_outputs(lowered, capture, store), _outputs(lowered, simulated, store))
    steps = (pair.largest for pair in (*logged, *outputs) if pair.device.has_codes)
    unequal = sum(pair.unequal for pair in (*logged, *outputs))
    elements = sum(pair.size for pair in (*logged, *outputs))
    return SimulatorDifference(
        equal=1 - unequal / elements if elements else None,
        steps=max((largest for largest in steps if largest is not None), default=None),
        why=_why(logged, outputs),
    )


def _pairs(device: Mapping[Any, _Tensor], simulated: Mapping[Any, _Tensor]) -> list[_Pair]:
    return [_Pair(device=one, simulated=simulated[key]) for key, one in device.items() if key in simulated]


def _why(logged: list[_Pair], outputs: list[_Pair]) -> str | None:
    """Return the tensor at which the difference begins. `logged`: in the order in which they were logged."""
    unlike = [number for number, pair in enumerate(logged) if pair.unequal]
    if unlike:
        first, inputs = logged[unlike[0]], "; it is the first one: its inputs may be others"
        before = f"; all {unlike[0]} tensors logged before it are equal" if unlike[0] else inputs
        after = f"; {len(unlike) - 1} later ones differ" if len(unlike) > 1 else ""
        return f"begins at {first.device.name}: {first.described}{before}{after}"
    wrong = [f"{pair.device.name}: {pair.described}" for pair in outputs if pair.unequal]
    if not wrong:
        return None
    cause = f", although all {len(logged)} logged tensors are equal" if logged else ""
    return f"{'; '.join(wrong)}{cause}"


def _logged(lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> dict[tuple[object, ...], _Tensor]:
    """Return the tensors that the debug programs logged, in their order, by what identifies them in another capture."""
    found: dict[tuple[object, ...], _Tensor] = {}
    halves = half_operators(lowered)
    for files in capture.debug:
        dump = read_etdump(store.read(files.etdump))
        buffer = np.frombuffer(store.read(files.buffer), np.uint8)
        runs = dict(zip(inferences(dump, len(files.samples)), files.samples, strict=True))
        expected = lowered.expected_in(files.part)
        aligned = align(lowered.operators, expected, dump.tensors, requantized=lowered.requantized, runs=[*runs])
        rows = (*aligned.operators, *aligned.requantized)
        operators = {id(match.event): row.operator for row in rows for match in row.matches}
        times = Counter[tuple[object, ...]]()
        for event in before_the_cpu(dump.tensors):
            if event.run not in runs:
                continue
            key = (files.part, runs[event.run], event.instruction_id, event.delegate_identifier, event.name)
            times[key] += 1
            operator = operators.get(id(event))
            found[*key, times[key]] = _read(
                f"{operator.target} ({operator.name})" if operator is not None else str(event.delegate_identifier),
                tensor(event, buffer),
                is_half=bool(halves) if operator is None else operator.index in halves,
                is_quantized=operator is not None and operator.quantization is not None,
            )
    return found


def _outputs(lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> dict[str, _Tensor]:
    """Return the final outputs of the program that ships; none if they can depend on an operator on the CPU."""
    if any(row.subgraph is None and not row.constant for row in lowered.operators):
        return {}
    halves, outputs = half_operators(lowered), load(store.read(capture.outputs))
    of_half = [index in halves for index in lowered.output_operators]
    return {
        key: _read(f"output {spec.name}", outputs[key], is_half=of_half[index], is_quantized=False)
        for sample in range(len(lowered.exported.sample_names))
        for index, spec in enumerate(lowered.exported.outputs)
        if (key := tensor_key(sample, index)) in outputs
    }


def _read(name: str, elements: Array, *, is_half: bool, is_quantized: bool) -> _Tensor:
    if is_half and elements.dtype == np.float32:
        with np.errstate(over="ignore"):
            elements = read_half(elements).astype(np.float16)
    if elements.dtype.kind == "f":
        elements = np.where(np.isnan(elements), elements.dtype.type(np.nan), elements)  # one NaN for all its bits
    has_codes = elements.dtype == np.float16 or (is_quantized and elements.dtype.kind in "iu")
    return _Tensor(name=name, elements=elements, has_codes=has_codes)


def _ordered(one: _Tensor) -> NDArray[np.float64]:
    """Return the elements, of float16 their positions among all float16."""
    if one.elements.dtype != np.float16:
        return one.elements.astype(np.float64)
    bits = np.ascontiguousarray(one.elements).view(np.uint16).astype(np.int64)
    return np.where(bits & _SIGN, -(bits & _MAGNITUDE), bits).astype(np.float64)
