"""qnnsweep's runner for devices with ONNX Runtime: the programs of a cell without ExecuTorch's runtime.

It is copied to devices in an archive; see `archive.py`. A device needs Python and the packages numpy, onnxruntime and
onnxruntime-qnn. The program that it gets is a JSON file; see `parts.py`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qnnsweep.tasks.records import waiting
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.ort import kernels

_PROVIDER = "QNNExecutionProvider"
_MODES = (
    "default", "sustained_high_performance", "burst", "high_performance", "power_saver", "low_power_saver",
    "high_power_saver", "low_balanced", "balanced",
)  # fmt: skip
"""ONNX Runtime's names of the performance modes, by their numbers in ExecuTorch's QnnExecuTorchHtpPerformanceMode."""


class OnnxProgram:
    """A program in ONNX Runtime. Each delegate is a session of its own, whose tensors keep their bytes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from qnnsweep.tasks.toolchain.ort.log import Log

        self._folder = Path(arguments.model_path).parent
        self._methods = json.loads(Path(arguments.model_path).read_text())["methods"]
        self._mode = _MODES[arguments.htp_performance_mode]
        self._etdump = Path(arguments.etdump_path)
        buffer = Path(arguments.debug_output_path) if arguments.dump_intermediate_outputs else None
        self._log = Log(buffer, arguments.debug_buffer_size)
        self._sessions: dict[str, Any] = {}
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
                self._session(call)
        return lambda: self._infer(of_method, inputs)

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
        session = self._session(call)
        fed = {side["name"]: _as(values[side["value"]], side["dtype"], side["shape"]) for side in call["inputs"]}
        start = time.monotonic_ns()
        computed = session.run(None, fed)
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

    def _session(self, call: Any) -> Any:
        """Return the session of a delegate. It is created once."""
        if call["model"] not in self._sessions:
            import onnxruntime

            settings = {"backend_path": _registered(), "htp_performance_mode": self._mode}
            devices = _devices()
            if not devices:
                sys.exit(runner.fail("onnxruntime-qnn finds no HTP on this machine"))
            settings |= {"soc_model": call["soc_model"], "htp_arch": call["arch"]}
            options = onnxruntime.SessionOptions()
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            options.add_provider_for_devices(devices[:1], settings)
            path = self._folder / call["model"]
            self._sessions[call["model"]] = onnxruntime.InferenceSession(str(path), sess_options=options)
        return self._sessions[call["model"]]


def _registered() -> str:
    """Register QNN's execution provider, unless it is registered. Return the path of QNN's library for the HTP."""
    import onnxruntime
    import onnxruntime_qnn

    if not _devices():
        onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    return onnxruntime_qnn.get_qnn_htp_path()


def _devices() -> list[Any]:
    """Return the devices of QNN's execution provider."""
    import onnxruntime

    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]


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
    return runner.main(OnnxProgram)


if __name__ == "__main__":
    sys.exit(main())
