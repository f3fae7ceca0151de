"""qnnsweep's runner without ExecuTorch's runtime: for devices with ONNX Runtime, and for devices of Qualcomm AI Hub.

It is copied to devices in an archive; see `archive.py`. A device needs Python and the packages numpy, onnxruntime and
onnxruntime-qnn; for AI Hub, the host needs a Python with qai-hub and flatbuffers. The program that it gets is a JSON
file; see `parts.py`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from qnnsweep.tasks.records import hosted, waiting
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.ort import kernels
from qnnsweep.tasks.toolchain.ort.hub import Hub
from qnnsweep.tasks.toolchain.ort.sessions import Sessions


class Engine(Protocol):
    """What executes the delegates of a program. The tensors keep their bytes."""

    is_here: bool
    """Whether the device that executes them has the clock of this process."""

    def prepare(self, call: Any) -> None:
        """Do what has to be done before the first inference of a delegate."""
        ...

    def expect(self, call: Any, samples: Iterable[dict[str, Any]]) -> None:
        """Get to know the inputs of a delegate in all inferences, before the first one."""
        ...

    def begin(self) -> None:
        """Note that an inference begins."""
        ...

    def run(self, call: Any, fed: dict[str, Any]) -> Sequence[Any]:
        """Return the outputs of a delegate, in the order of the call. `fed`: its inputs, by name."""
        ...

    def mean_ms(self, measured_ms: float, /) -> float | None:
        """Return the time of an inference on the device, which took `measured_ms` here; None if it is not known."""
        ...


class DividedProgram:
    """A program in parts: an engine executes the delegates, and the operators on the CPU are computed between them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from qnnsweep.tasks.toolchain.ort.log import Log

        self._folder = Path(arguments.model_path).parent
        self._methods = json.loads(Path(arguments.model_path).read_text())["methods"]
        self._engine: Engine = Hub(arguments) if hosted.SETTINGS in os.environ else Sessions(arguments)
        self._etdump = Path(arguments.etdump_path)
        buffer = Path(arguments.debug_output_path) if arguments.dump_intermediate_outputs else None
        self._log = Log(buffer, arguments.debug_buffer_size, is_here=self._engine.is_here)
        self._has_pytorch = kernels.has_pytorch() if self._has_kernels() else False
        self._is_driven = arguments.plan_path is not None
        self._requests: dict[str, Any] = {}

    def methods(self) -> list[str]:
        return [method["name"] for method in self._methods]

    def inputs(self, method: str) -> Sequence[tuple[str, tuple[int, ...]]]:
        of_method = self._method(method)
        values = [of_method["values"][position] for position in of_method["inputs"]]
        return [(value["dtype"], tuple(value["shape"])) for value in values]

    def prepared(self, method: str, inputs: runner.Arrays) -> Callable[[], Any]:
        of_method = self._method(method)
        for call in of_method["calls"]:
            if "model" in call:
                self._engine.prepare(call)
        return lambda: self._infer(of_method, inputs)

    def expect(self, method: str, samples: Iterable[runner.Arrays]) -> None:
        """Tell the engine what the first delegate of a method gets, unless an operator on the CPU is before it."""
        of_method = self._method(method)
        call = of_method["calls"][0] if of_method["calls"] else {}
        if "model" not in call:
            return
        constants = self._constants(of_method)
        given = (constants | dict(zip(of_method["inputs"], inputs, strict=True)) for inputs in samples)
        self._engine.expect(call, (_fed(call, values) for values in given))

    def mean_ms(self, measured_ms: float, /) -> float | None:
        return self._engine.mean_ms(measured_ms)

    def arrays(self, answer: Any) -> runner.Arrays:
        return answer

    def write_log(self) -> None:
        self._log.write(self._etdump)
        if self._requests:
            Path(waiting.REQUESTS).write_text(json.dumps([*self._requests.values()]))
            sys.exit(waiting.WAITING)

    def _has_kernels(self) -> bool:
        return any("kernel" in call for method in self._methods for call in method["calls"])

    def _method(self, name: str) -> Any:
        return next(method for method in self._methods if method["name"] == name)

    def _infer(self, method: Any, inputs: runner.Arrays) -> runner.Arrays:
        """Run the calls of a method in their order, and log what they compute as ExecuTorch's runtime does.

        The outputs are zeros if the method waits for the host: the program will be run again.
        """
        import numpy as np

        values = self._constants(method) | dict(zip(method["inputs"], inputs, strict=True))
        self._log.begin()
        self._engine.begin()
        for call in method["calls"]:
            if "model" in call:
                self._run_delegate(method, call, values)
            elif not self._run_kernel(method, call, values):
                self._log.end()
                return [np.zeros(value["shape"], value["dtype"]) for value in self._outputs(method)]
        outputs = [values[position] for position in method["outputs"]]
        for array in outputs:
            self._log.tensor(array, chain=-1, instruction=0, output=True)
        self._log.end()
        return outputs

    def _outputs(self, method: Any) -> list[Any]:
        return [method["values"][position] for position in method["outputs"]]

    def _constants(self, method: Any) -> dict[str, Any]:
        return {
            position: _as(_bytes_of(self._folder / value["file"]), value["dtype"], value["shape"])
            for position, value in method["values"].items()
            if "file" in value
        }

    def _run_delegate(self, method: Any, call: Any, values: dict[str, Any]) -> None:
        fed = _fed(call, values)
        start = time.monotonic_ns()
        computed = self._engine.run(call, fed)
        self._log.call("DELEGATE_CALL", call["instruction"], start, time.monotonic_ns())
        for side, array in zip(call["outputs"], computed, strict=True):
            if side["value"] is not None:
                of_method = method["values"][side["value"]]
                values[side["value"]] = _as(array, of_method["dtype"], of_method["shape"])
            self._log.tensor(array, chain=0, instruction=call["instruction"], name=side["name"])
        for side in (*call["inputs"], *call["outputs"]):
            if side["value"] is not None:
                self._log.tensor(values[side["value"]], chain=0, instruction=call["instruction"])

    def _run_kernel(self, method: Any, call: Any, values: dict[str, Any]) -> bool:
        """Compute an operator that no delegate computes. Return whether its results are known."""
        instruction = call["instruction"]
        written = kernels.written_by(call, values)
        if self._has_pytorch:
            start = time.monotonic_ns()
            try:
                computed, took_ns = kernels.compute(call, method["values"], values)
            except kernels.UnknownKernelError as error:
                sys.exit(runner.fail(str(error)))
            self._log.call("OPERATOR_CALL", instruction, start, start + took_ns)
        elif (computed := self._answered(method, call, values)) is None:
            return False
        for position in written:
            values[position] = computed[position]
            self._log.tensor(values[position], chain=0, instruction=instruction)
        return True

    def _answered(self, method: Any, call: Any, values: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the host computed for a call. If there is nothing, write what the host needs, and return None."""
        read = kernels.read_by(call, values)
        key = kernels.key_of(call, [values[position] for position in read])
        written = kernels.written_by(call, values)
        for folder in Path().glob(f"{waiting.ANSWERS}*"):
            if all((folder / f"{key}_{position}").is_file() for position in written):
                return {
                    position: kernels.array_in(folder / f"{key}_{position}", method["values"][position])
                    for position in written
                }
        if self._is_driven:  # the next step of the sequence would read zeros
            sys.exit(runner.fail(f"{call['kernel']} runs on the CPU between steps: install torch on the device"))
        asked = Path(waiting.ASKED)
        asked.mkdir(exist_ok=True)
        for position in read:
            (asked / f"{key}_{position}").write_bytes(values[position].tobytes())
        number = method["calls"].index(call)
        self._requests[key] = {"method": method["name"], "call": number, "key": key, "reads": read}
        return None


def _fed(call: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a delegate by their names."""
    return {side["name"]: _as(values[side["value"]], side["dtype"], side["shape"]) for side in call["inputs"]}


def _bytes_of(file: Path) -> Any:
    import numpy as np

    return np.fromfile(file, np.uint8)


def _as(array: Any, dtype: str, shape: Sequence[int]) -> Any:
    """Return the bytes of an array as an array of another type or shape: a delegate and its caller share bytes."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).view(dtype).reshape(shape)


def main() -> int:
    """Run the program of the command line; see `qnnsweep.tasks.toolchain.runner`. `KERNELS`: see `waiting.py`."""
    if sys.argv[1:2] == [waiting.KERNELS]:
        return kernels.main(*map(Path, sys.argv[2:]))
    return runner.main(DividedProgram)


if __name__ == "__main__":
    sys.exit(main())
