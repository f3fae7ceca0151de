"""The stage measure: Bundle -> Capture. Its three steps run on a device during one lease."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from qnnsweep.conf.devices import DeviceConfig, RunnerKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.comparison.runtimes import equal_tensors
from qnnsweep.tasks.comparison.worst_sample import bundle_of_failed, bundle_of_worst
from qnnsweep.tasks.devices.collect import collect, collect_again
from qnnsweep.tasks.devices.deploy import deploy
from qnnsweep.tasks.devices.device import Device, with_onnxruntime
from qnnsweep.tasks.devices.execute import execute
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.native_runner import devices_key
from qnnsweep.tasks.devices.transport import require_success
from qnnsweep.tasks.errors import DeviceError, RunnerFailed, RuntimesDiffer
from qnnsweep.tasks.records import Bundle, Capture, Toolchain
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store

Step = Callable[[str], AbstractContextManager[object]]
"""A function from the name of a step to the context in which the step runs."""


def measure(
    bundle: Bundle,
    devices: tuple[DeviceConfig, ...],
    soc: SocConfig | None,
    _toolchain: Toolchain | None = None,
    run_id: str | None = None,
    *,
    store: Store,
    farm: Farm,
    step: Step = nullcontext,
) -> Capture:
    """Deploy, execute and collect on a free device of the SoC; repeat on another device when a device fails.

    If a debug program fails with several samples, it runs once more with each of them alone. If the operators of the
    device's worst sample are not among those that the lowering chose to capture, they are captured too. Both happen
    during the same lease, as parts of the step `collect`, which makes the worst sample known.
    `soc`: None for a program that does not depend on an SoC.
    `_toolchain`: the toolchain with which a local device runs its programs; used only for the cache key.
    `run_id`: written into the capture.
    `step`: reports the start and the end of each of the three steps.
    A lease that is lost, because this process did not renew it in time, begins again.
    Raises DeviceError when no device is left. RunnerFailed and EvidenceError of the three steps are passed on.
    """
    while True:
        with farm.lease(devices, soc) as device:
            try:
                sent = bundle.for_onnxruntime() if device.config.runner.divides else bundle
                with step("deploy"):
                    deployment = deploy(sent, device=device, store=store)
                with step("execute"):
                    execution = execute(deployment, device=device, store=store)
                with step("collect"):
                    capture = collect(execution, device=device, store=store)
                    capture = _with_further_samples(capture, sent, device, store)
                    capture = _controlled(capture, bundle, device, store)
                return replace(capture, measured_run=run_id, device_id=device.device_id)
            except DeviceError as error:
                farm.failed(device.name, error)


def _controlled(capture: Capture, bundle: Bundle, device: Device, store: Store) -> Capture:
    """Return the capture with the number of tensors that ONNX Runtime returned too, if it was asked.

    Raises RuntimesDiffer, also if ONNX Runtime does not execute the programs.
    """
    second = bundle.onnxruntime
    if second is None or not second.is_control or device.config.runner is not RunnerKind.python:
        return capture
    device = with_onnxruntime(device)
    folders = (f"{device.lease_folder}/{launch.folder}" for launch in bundle.launches)  # their files have arrived
    require_success(device.run(["rm", "-rf", "--", *folders]), f"{device.name}: cannot remove the files of a launch")
    deployment = deploy(bundle.for_onnxruntime(), device=device, store=store)
    try:
        control = collect(execute(deployment, device=device, store=store), device=device, store=store)
    except RunnerFailed as error:
        raise RuntimesDiffer(
            f"ExecuTorch's runtime executes the programs, but ONNX Runtime does not: {error}"
        ) from error
    return replace(capture, equal_tensors=equal_tensors(capture, control, store))


def _with_further_samples(capture: Capture, bundle: Bundle, device: Device, store: Store) -> Capture:
    """Return the capture with the operators of samples that are captured alone."""
    for further in (bundle_of_failed, bundle_of_worst):
        added = further(bundle, capture, store)
        if added is not None:
            deployment = deploy(added, device=device, store=store)
            execution = execute(deployment, device=device, store=store)
            capture = collect_again(capture, execution, device=device, store=store)
    return capture


def _key_inputs(
    bundle: Bundle, devices: tuple[DeviceConfig, ...], soc: SocConfig | None, toolchain: Toolchain | None, _: str | None
) -> object:
    """Return what the result depends on. A device contributes its address and its runner, but not its deadlines."""
    return bundle, devices_key(devices, soc), soc, toolchain


measure_task = stage(measure, version=5, key_inputs=_key_inputs)
