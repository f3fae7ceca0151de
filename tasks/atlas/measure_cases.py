"""The stage measure_cases: CompiledCases -> MeasuredCases. One lease of a device serves many cases."""

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.devices.collect import collect
from qnnsweep.tasks.devices.deploy import deploy
from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.execute import execute
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.native_runner import devices_key
from qnnsweep.tasks.devices.transport import require_success
from qnnsweep.tasks.errors import DeviceError, EvidenceError, LeaseLost, OutputSizeDiffers, RunnerFailed
from qnnsweep.tasks.records import Bundle, Capture, CompiledCases, MeasuredCase, MeasuredCases, Toolchain
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store


def measure_cases(
    compiled: CompiledCases,
    devices: tuple[DeviceConfig, ...],
    soc: SocConfig | None,
    _toolchain: Toolchain | None = None,
    *,
    store: Store,
    farm: Farm,
) -> MeasuredCases:
    """Execute every case that has a program on free devices of the SoC; another device continues when one fails.

    `_toolchain`: the toolchain with which a local device runs its programs; used only for the cache key. A program that
    fails on a device has a measurement that says so. Raises DeviceError when no device is left, and EvidenceError for
    files that are damaged in the store, or twice on their way.
    """
    waiting = [(one.case.name, one.bundle) for one in compiled.cases if one.bundle is not None]
    measured: list[MeasuredCase] = []
    while len(measured) < len(waiting):
        with farm.lease(devices, soc) as device:
            for name, bundle in waiting[len(measured) :]:
                try:
                    measured.append(_measured(name, bundle, device, store))
                except DeviceError as error:
                    is_lost = isinstance(error, LeaseLost)
                    why = error if is_lost else DeviceError(f"the case {name}: {error}", problem=error.problem)
                    farm.failed(device.name, why)
                    break
    return MeasuredCases(cases=tuple(measured))


def _measured(name: str, bundle: Bundle, device: Device, store: Store) -> MeasuredCase:
    """Execute a case. Raises DeviceError if the device fails, and MachineFault if this machine does."""
    sent = bundle.for_onnxruntime() if device.config.runner.divides else bundle
    try:
        try:
            capture = _captured(sent, device, store)
        except EvidenceError:  # it may have come from the transfer, and is not repeated then
            capture = _captured(sent, device, store)
        return MeasuredCase(case=name, device=device.name, capture=capture)
    except RunnerFailed as error:
        ending = "killed" if error.command.exit_code < 0 else "failed"
        return MeasuredCase(case=name, device=device.name, failure=str(error), ending=ending, log=store.find(error.log))
    except OutputSizeDiffers as error:
        return MeasuredCase(case=name, device=device.name, failure=str(error), ending="wrong output")


def _captured(bundle: Bundle, device: Device, store: Store) -> Capture:
    """Deploy, execute and collect. Before, the folders of the launches are emptied: every case has the same ones."""
    folders = (f"{device.lease_folder}/{launch.folder}" for launch in bundle.launches)
    require_success(device.run(["rm", "-rf", "--", *folders]), f"{device.name}: cannot remove the files of a case")
    execution = execute(deploy(bundle, device=device, store=store), device=device, store=store)
    return collect(execution, device=device, store=store)


def _key_inputs(
    compiled: CompiledCases,
    devices: tuple[DeviceConfig, ...],
    soc: SocConfig | None,
    toolchain: Toolchain | None = None,
) -> object:
    """Return what the result depends on; see `devices_key`."""
    return [(one.case.name, one.bundle) for one in compiled.cases], devices_key(devices, soc), soc, toolchain


measure_cases_task = stage(measure_cases, version=1, key_inputs=_key_inputs)
