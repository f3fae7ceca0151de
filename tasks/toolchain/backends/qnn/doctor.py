"""The lines of `qnnsweep doctor` about QNN: the QNN libraries, and ExecuTorch's QNN backend."""

import os
import subprocess
import sys
from collections.abc import Iterator

from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.toolchain.backends.backend import DoctorCheck
from qnnsweep.tasks.toolchain.backends.qnn.sdk import Sdk, find_sdk

_DEADLINE_S = 120
# As in `tasks/toolchain/runner.py`, `portable_lib` is avoided, and the libraries of torch must be loaded first.
LIST_BACKENDS = """
import torch
from executorch.extension.pybindings import _C
print("backends:", *sorted(_C._get_registered_backend_names()))
"""


def qnn_doctor() -> Iterator[DoctorCheck]:
    try:
        sdk = find_sdk(os.environ)
    except EnvironmentUnusable as error:
        remedy = error.remedy or "run `pip install onnxruntime-qnn==2.5.0`"
        yield DoctorCheck(what="QNN", found=error.problem, ok=False, remedy=remedy)
        return
    yield DoctorCheck(what="QNN", found=f"{sdk.build} from {sdk.origin}", ok=True)
    backends = _registered_backends(sdk)
    yield DoctorCheck(
        what="backends",
        found=backends,
        ok="QnnBackend" in backends,
        remedy="run `pip install executorch==1.5.1`, which has the QNN backend",
    )


def _registered_backends(sdk: Sdk) -> str:
    """Return the names of the backends in ExecuTorch's runtime. If listing them fails, return the last error line."""
    listing = subprocess.run(
        [sys.executable, "-c", LIST_BACKENDS],
        env=dict(os.environ) | sdk.environment(os.environ),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    lines = [line for line in listing.stdout.splitlines() if line.startswith("backends: ")]
    if lines:
        return lines[0].removeprefix("backends: ").replace(" ", ", ")
    return next(reversed(listing.stderr.strip().splitlines()), f"exit code {listing.returncode}")
