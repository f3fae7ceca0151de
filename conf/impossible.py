"""The reasons why a cell is impossible: its backend excludes the cell, or no device can execute the cell."""

from qnnsweep.conf.backends import Rule, planned_backend
from qnnsweep.conf.devices import PROBE, DeviceConfig, RunnerKind, TransportKind
from qnnsweep.conf.errors import printable
from qnnsweep.conf.overrides import computed_in
from qnnsweep.conf.schema import PerformanceMode, Request, SocConfig
from qnnsweep.conf.schemes import SchemeConfig


def impossible_reason(request: Request) -> str | None:
    """Return a text of one line, the reason why the cell is impossible. Return None if the cell is possible.

    With `try_impossible`, the cell is possible even if a limit of the backend's compiler excludes it.
    """
    backend, soc = planned_backend(request.backend.kind), request.soc.name
    if backend.socs is not None and soc not in backend.socs:
        return f"the {printable(request.backend.name)} backend does not compile for {printable(soc)}"
    if request.scheme.overrides and not backend.overrides:
        return f"the {printable(request.backend.name)} backend has no schemes with overrides"
    if request.toolchain.folder is not None and (reason := _excludes_toolchains(request)) is not None:
        return reason
    if request.measure.second_runtime and (reason := excludes_second_runtime(request)) is not None:
        return reason
    if request.model.states is not None and all(device.runner is RunnerKind.native for device in request.devices):
        return "ExecuTorch's native runner has no loop for a model with states; use a device with runner=python"
    is_hosted = all(device.runner is RunnerKind.aihub for device in request.devices)
    if request.measure.performance_mode is not PerformanceMode.default and is_hosted:
        return "AI Hub chooses the performance mode of its devices; set measure.performance_mode=default"
    if request.measure.profile_level and all(device.runner.divides for device in request.devices):
        logs = "AI Hub" if is_hosted else "ONNX Runtime"
        return f"{logs} logs no times of operators; set measure.profile_level=0, or use runner=python"
    rules = [rule for rule in backend.rules if not (request.try_impossible and rule.of_compiler)]
    reason = next((rule.reason for rule in rules if _excludes(rule, request.soc, request.scheme)), None)
    if reason is None and not any(can_run_on(device, request) for device in request.devices):
        return f"no device of {printable(request.where)} is a {printable(soc)} or a simulator host"
    return reason


def excluded_scheme(kind: str, soc: SocConfig | None, scheme: SchemeConfig) -> str | None:
    """Return why a backend excludes a scheme for an SoC; None if it does not. `kind`: the backend's kind."""
    backend = planned_backend(kind)
    if scheme.overrides and not backend.overrides:
        return f"the {printable(kind)} backend has no schemes with overrides"
    return next((rule.reason for rule in backend.rules if _excludes(rule, soc, scheme)), None)


def compiler_limit(request: Request) -> str | None:
    """Return the reason of the first limit of the backend's compiler that excludes the cell; None if there is none."""
    rules = (rule for rule in planned_backend(request.backend.kind).rules if rule.of_compiler)
    return next((rule.reason for rule in rules if _excludes(rule, request.soc, request.scheme)), None)


def _excludes_toolchains(request: Request) -> str | None:
    """Return why no cell can use a prepared toolchain with this backend or these devices; None if it can."""
    toolchain = printable(request.toolchain.name)
    if not planned_backend(request.backend.kind).prepared_toolchains:
        return f"the {printable(request.backend.name)} backend uses nothing of the toolchain {toolchain}"
    if not any(map(is_here, request.devices)):
        return f"toolchain {toolchain} is on this machine, and {printable(request.where)} has its own QNN"
    return None


def excludes_second_runtime(request: Request) -> str | None:
    """Return why ONNX Runtime executes no programs of the cell; None if it does."""
    remedy = "set measure.second_runtime=false"
    if RunnerKind.onnxruntime not in planned_backend(request.backend.kind).runners:
        return f"ONNX Runtime executes no programs of the {printable(request.backend.name)} backend; {remedy}"
    if request.toolchain.folder is not None:
        return f"toolchain {printable(request.toolchain.name)} has another QNN than ONNX Runtime; {remedy}"
    return None


def is_here(device: DeviceConfig) -> bool:
    """Return whether the device is the simulator of this machine."""
    return (device.transport, device.runner) == (TransportKind.local, RunnerKind.python)


def can_run_on(device: DeviceConfig, request: Request) -> bool:
    """Return whether the device, as configured, can execute the cell. With `device.soc=probe`, any SoC is allowed."""
    backend = planned_backend(request.backend.kind)
    fits = not backend.needs_soc or device.soc in (None, PROBE, request.soc.name)
    if request.toolchain.folder is not None and not is_here(device):
        return False
    if request.model.states is not None and device.runner is RunnerKind.native:
        return False
    if request.measure.profile_level and device.runner.divides:
        return False
    if request.measure.performance_mode is not PerformanceMode.default and device.runner is RunnerKind.aihub:
        return False
    return fits and device.runner in backend.runners


def _excludes(rule: Rule, soc: SocConfig | None, scheme: SchemeConfig) -> bool:
    if rule.arch_below is not None and (soc is None or soc.arch >= rule.arch_below):
        return False
    computes = computed_in(scheme)
    return not computes <= rule.computes if rule.others else not computes.isdisjoint(rule.computes)
