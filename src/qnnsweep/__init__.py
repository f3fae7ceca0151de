"""qnnsweep: which operator costs the accuracy of a PyTorch model on a Snapdragon NPU, and why.

`qnnsweep.debug(model, samples)` is the whole way from a module to the answer. The other functions are the commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qnnsweep.tasks.models.torchvision_import import mend_torchvision

if TYPE_CHECKING:
    from qnnsweep.flows.api.calls import Repair as Repair
    from qnnsweep.flows.api.calls import atlas as atlas
    from qnnsweep.flows.api.calls import bisect as bisect
    from qnnsweep.flows.api.calls import debug as debug
    from qnnsweep.flows.api.calls import diff as diff
    from qnnsweep.flows.api.calls import inspect as inspect
    from qnnsweep.flows.api.calls import open_run as open_run
    from qnnsweep.flows.api.calls import plan as plan
    from qnnsweep.flows.api.calls import qualify as qualify
    from qnnsweep.flows.api.calls import recompare as recompare
    from qnnsweep.flows.api.calls import repair as repair
    from qnnsweep.flows.api.calls import repro as repro
    from qnnsweep.flows.api.calls import run as run
    from qnnsweep.flows.api.calls import simulate as simulate
    from qnnsweep.flows.api.calls import tensors as tensors
    from qnnsweep.flows.api.result import Run as Run
    from qnnsweep.flows.runs.culprit import Culprit as Culprit
    from qnnsweep.tasks.errors import DeviceError as DeviceError
    from qnnsweep.tasks.errors import EnvironmentUnusable as EnvironmentUnusable
    from qnnsweep.tasks.errors import QnnsweepError as QnnsweepError
    from qnnsweep.tasks.errors import RequestError as RequestError

mend_torchvision()  # before the user imports transformers or timm, whose imports fail where those of torchvision do
_CALLS, _ERRORS = "qnnsweep.flows.api.calls", "qnnsweep.tasks.errors"
_MODULES = {
    **dict.fromkeys(("atlas", "bisect", "debug", "diff", "inspect", "open_run", "plan", "qualify"), _CALLS),
    **dict.fromkeys(("recompare", "repair", "repro", "run", "simulate", "tensors", "Repair"), _CALLS),
    "Culprit": "qnnsweep.flows.runs.culprit",
    "Run": "qnnsweep.flows.api.result",
    **dict.fromkeys(("DeviceError", "EnvironmentUnusable", "QnnsweepError", "RequestError"), _ERRORS),
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: a process of the toolchain imports this package, and needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'qnnsweep' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
