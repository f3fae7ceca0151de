"""The delegates of a program in ONNX Runtime: each is a session of its own."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qnnsweep.tasks.toolchain import runner

_PROVIDER = "QNNExecutionProvider"
_MODES = (
    "default", "sustained_high_performance", "burst", "high_performance", "power_saver", "low_power_saver",
    "high_power_saver", "low_balanced", "balanced",
)  # fmt: skip
"""ONNX Runtime's names of the performance modes, by their numbers in ExecuTorch's QnnExecuTorchHtpPerformanceMode."""


class Sessions:
    """The sessions of one program."""

    is_here = True

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._folder = Path(arguments.model_path).parent
        self._mode = _MODES[arguments.htp_performance_mode]
        self._sessions: dict[str, Any] = {}

    def prepare(self, call: Any) -> None:
        """Create the session of a delegate, once."""
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

    def expect(self, call: Any, samples: Iterable[dict[str, Any]]) -> None:
        """Nothing is done before the first inference."""

    def begin(self) -> None:
        """Nothing is noted of an inference."""

    def run(self, call: Any, fed: dict[str, Any]) -> Sequence[Any]:
        """Return the outputs of a delegate."""
        return self._sessions[call["model"]].run(None, fed)

    def mean_ms(self, measured_ms: float, /) -> float | None:
        """Return the measured time: the sessions are in this process."""
        return measured_ms


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
