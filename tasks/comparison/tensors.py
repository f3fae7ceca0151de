"""All elements of the tensors of one operator on one sample. This module computes with PyTorch, like a comparison."""

from typing import Any

from numpy.typing import NDArray

from qnnsweep.tasks.comparison.evidence import Evidence
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.numerics.device_run import DeviceRun
from qnnsweep.tasks.numerics.operators import to_reference_layout_and_scale
from qnnsweep.tasks.records import CapturedMethod, LoweredMethod
from qnnsweep.tasks.records.operator_names import operator_named
from qnnsweep.tasks.storage.store import Store


def operator_tensors(
    lowered: LoweredMethod, capture: CapturedMethod, operator: str, sample: int | None, store: Store
) -> dict[str, NDArray[Any]]:
    """Return the tensors of an operator in PyTorch's layout, by name.

    `device` is the device's value, `reference` that of the edge graph from the model's inputs, and `on_host` the result
    of the operator on the host from the device's own inputs. If the value is quantized on the device, `quantized` has
    the integers. `operator`: its name, or the path of a module with this operator alone. `sample`: None if none was
    captured. Raises RequestError for an operator or a sample without a logged tensor.
    """
    names = {known.name: known.index for known in lowered.operators}
    operator = operator_named(operator, ((known.name, known.module_path) for known in lowered.operators))
    if sample is None or not capture.debug:
        raise RequestError("CELL: its operators were not captured; run it again with measure.operator_samples=1")
    evidence, index = Evidence(lowered, capture, store), names[operator]
    if sample not in evidence.samples:
        captured = ", ".join(map(str, evidence.samples))
        raise RequestError(f"--sample={sample}: its operators were not captured; choose one of {captured}")
    logged = evidence.logged_operators(sample).get(index)
    if logged is None:
        status = next(row.reason for row in evidence.aligned(sample) if row.operator.index == index)
        raise RequestError(f"OPERATOR={operator}: the device logged no tensor of it (status {status}); name another")
    expected, reference = logged.match.expected, evidence.reference(sample, index)
    tensors = {
        "device": to_reference_layout_and_scale(expected.quantization, expected.axis_order, logged.elements, reference),
        "reference": reference,
    }
    captured = evidence.captured_values(sample)
    if index in captured and captured[index].qparams is not None:
        tensors["quantized"] = captured[index].elements
    kernels, _ = next(evidence.kernels([sample]))
    run = DeviceRun(kernels, captured, evidence.requantized_values(sample, kernels.sources, captured))
    if index in run.on_host:
        tensors["on_host"] = run.on_host[index]
    return tensors
