"""The same programs in two runtimes: every tensor of ExecuTorch's runtime against that of ONNX Runtime, byte by byte.

Both execute the same context binaries. So a difference is no error of an operator: it comes from how a runtime passes
inputs, outputs and logged tensors. An operator on the CPU is computed by kernels of each runtime's own, which may round
otherwise. Therefore what can depend on such an operator is not compared.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.devices.host_kernels import methods_of
from qnnsweep.tasks.errors import RuntimesDiffer
from qnnsweep.tasks.records import Capture, CapturedMethod
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.records.logs import LoggedTensor
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor

Tensors = Mapping[tuple[Any, ...], NDArray[Any]]


def equal_tensors(first: Capture, second: Capture, store: Store) -> int:
    """Return the number of tensors of the second capture, all of which are those of the first one.

    `first`, `second`: the captures of ExecuTorch's runtime and of ONNX Runtime. A debug program that failed in one of
    them has no tensors. Raises RuntimesDiffer, which says what differs, and EvidenceError.
    """
    number, problems = 0, list[str]()
    for position, (ours, other) in enumerate(zip(first.methods, second.methods, strict=True)):
        launch = ours.results[0].launch
        launched = launch.methods[position if launch.driven else 0]
        names = [spec.name for spec in launched.outputs]
        described = methods_of(other.results[0].launch.program, store)[launched.name or METHOD]
        if all("model" in call for call in described["calls"]):
            outputs, of_second = (load(store.read(method.outputs)) for method in (ours, other))
            number += len(of_second)
            problems += _outputs(names, outputs, of_second)
        logged, logged_second = _logged(ours, store), _logged(other, store)
        # ExecuTorch logs a type of QNN that it does not know as uint8: of an int64, only a part of the bytes.
        both = [name for name, two in logged_second.items() if name in logged and logged[name].itemsize == two.itemsize]
        number += len(both)
        unlike = [name for name in both if not _is_equal(logged[name], logged_second[name])]
        if unlike:
            from_start = " (from the first one on: look at the inputs)" if unlike[0] == both[0] else ""
            tensors = f"{len(unlike)} of {len(both)} tensors inside the delegates"
            problems.append(f"{tensors} differ, the first is {unlike[0][-1]}{from_start}")
    if problems:
        raise RuntimesDiffer(
            "ExecuTorch's runtime and ONNX Runtime return other tensors from the same compiled graph, so no operator "
            f"is at fault: {'; '.join(problems)}"
        )
    return number


def _outputs(
    names: Sequence[str], first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]
) -> Iterator[str]:
    """Yield what differs between the final outputs, and which output has the values of another one."""
    samples = sorted({key.partition("/")[0] for key in second}, key=int)
    for index, name in enumerate(names):
        unlike = [at for at in samples if not _is_equal(first[f"{at}/{index}"], second[f"{at}/{index}"])]
        exchanged = (
            other
            for number, other in enumerate(names)
            if number != index and all(_is_equal(first[f"{at}/{index}"], second[f"{at}/{number}"]) for at in samples)
        )
        if unlike:
            is_other = "".join(f", where it is {other} of ONNX Runtime" for other in exchanged)
            yield f"output {name} differs in {len(unlike)} of {len(samples)} samples{is_other}"


def _logged(method: CapturedMethod, store: Store) -> Tensors:
    """Return the tensors that the delegates logged before any operator on the CPU.

    The keys have the program, the sample, the instruction and the name.
    """
    found: dict[tuple[Any, ...], NDArray[Any]] = {}
    for files in method.debug:
        dump = read_etdump(store.read(files.etdump))
        buffer = np.frombuffer(store.read(files.buffer), np.uint8)
        runs = dict(zip(sorted({one.run for one in dump.tensors}), files.samples, strict=False))
        times = Counter[tuple[Any, ...]]()
        for logged in before_the_cpu(dump.tensors):
            key = (files.part, runs.get(logged.run), logged.instruction_id, logged.delegate_identifier)
            times[key] += 1
            found[(times[key], *key)] = tensor(logged, buffer)
    return found


def before_the_cpu(tensors: Sequence[LoggedTensor]) -> Iterator[LoggedTensor]:
    """Yield the tensors that delegates logged before any operator on the CPU, on which nothing of them can depend."""
    on_cpu = (
        one.instruction_id
        for one in tensors
        if one.delegate_identifier is None and not one.delegate_argument and not one.is_output
    )
    first_on_cpu = min(on_cpu, default=sys.maxsize)
    yield from (one for one in tensors if one.delegate_identifier is not None and one.instruction_id < first_on_cpu)


def _is_equal(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return whether two tensors have the same bytes. A boolean of QNN is logged as uint8 by one of the runtimes."""
    return first.shape == second.shape and first.tobytes() == second.tobytes()
