"""The step execute of a measurement: Deployment -> Execution.

Each launch has its own process, so a crash affects only one launch.
"""

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from qnnsweep.conf.devices import RunnerKind, TransportKind
from qnnsweep.tasks.devices.cooldown import wait_until_cool
from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.host_kernels import answer, methods_of, most_rounds
from qnnsweep.tasks.devices.native_runner import RUNNER
from qnnsweep.tasks.devices.runner_cli import (
    OUTPUT_FOLDER,
    blob_path,
    job_urls,
    last_lines,
    latencies_ms,
    native_folder,
    runner_arguments,
)
from qnnsweep.tasks.devices.transport import CommandResult, RunRequest, require_success
from qnnsweep.tasks.devices.triage import hosted_problem, missing_operators, of_runner
from qnnsweep.tasks.errors import DeadlinePassed, DeviceError, MachineFault, QnnsweepError, RunnerFailed, shortage_in
from qnnsweep.tasks.process_tree import ENDED_BY_OTHERS
from qnnsweep.tasks.records import Blob, Command, Deployment, Execution, Launch, LaunchResult, hosted
from qnnsweep.tasks.records.waiting import WAITING
from qnnsweep.tasks.storage.store import Store

_RESPONSE_S = 20.0
_OF_DEADLINE = 0.9
"""The part of the deadline that the jobs of a hosted device can take; then the runner itself says that one is late."""
_FULL_BUFFER = "Ran out of space to store intermediate outputs"
"""ExecuTorch's message in devtools/etdump if the debug buffer is too small."""


def execute(deployment: Deployment, *, device: Device, store: Store) -> Execution:
    """Start the runner once per launch. Raises RunnerFailed if the runner fails, DeviceError if the channel fails.

    A program that another process ends, or that lacks memory, is a fault of the machine: DeviceError, and MachineFault
    if the device is this machine. A debug program that a signal or a lack of memory ends is started once more. If it
    fails, its result says why, because the shipping program has been measured by then. It can need more memory.
    """
    results = tuple(_launch(deployment, launch, device, store) for launch in deployment.bundle.launches)
    return Execution(device=device.name, results=results, bytes_sent=deployment.bytes_sent)


def _launch(
    deployment: Deployment, launch: Launch, device: Device, store: Store, *, is_again: bool = False
) -> LaunchResult:
    folder = f"{device.lease_folder}/{launch.folder}"
    created = device.run(["mkdir", "-p", "--", f"{folder}/{OUTPUT_FOLDER}"])
    require_success(created, f"{device.name}: cannot create {folder}")
    argv, environment = _runner_command(deployment, launch, device, store)
    wait_until_cool(device)
    deadline_s = device.config.deadline_s
    request = RunRequest(argv, deadline_s=deadline_s, folder=folder, environment=environment)
    try:
        *waited, result = _run(deployment, launch, request, device, store)
    except DeadlinePassed as late:
        if device.config.runner is RunnerKind.aihub or not _is_responsive(device):
            raise  # that this machine answers says nothing about a hosted device
        # The device is responsive, so the program itself did not end.
        command = device.ended(argv, -signal.SIGKILL, deadline_s)
        message = f"the {launch.title} did not end within {deadline_s:g} s on {device.name}"
        return _failed(launch, message, folder, command, store.put_bytes(late.output))
    printed = result.stdout.decode(errors="replace")
    is_hosted = device.config.runner is RunnerKind.aihub
    of_all_starts = "\n".join(one.stdout.decode(errors="replace") for one in (*waited, result))
    seconds = sum(one.seconds for one in (*waited, result))
    command = device.ended(argv, result.exit_code, seconds, host_rounds=len(waited))
    command = replace(command, jobs=job_urls(of_all_starts) if is_hosted else ())
    errors = result.stderr.decode(errors="replace")
    log = store.put_bytes(result.stdout + b"\n" + result.stderr)
    if result.exit_code != 0:
        end = last_lines(errors.splitlines() or printed.splitlines())
        code = result.exit_code
        names = {member.value: member.name for member in signal.Signals}
        ending = f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")
        failure = f"the {launch.title} ended with {ending} on {device.name}\n{end}"
        if (said := hosted_problem(errors)) is not None:
            printed = errors = said
        if (known := of_runner(printed, errors)) is not None:
            raise DeviceError(f"{known.name}: {known.remedy}; {failure}")
        fault = _machine_fault(launch, result, f"{printed}\n{errors}", device)
        if launch.debug and not is_again and (fault is not None or code < 0):
            require_success(device.run(["rm", "-rf", "--", folder]), f"{device.name}: cannot remove {folder}")
            return _launch(deployment, launch, device, store, is_again=True)
        is_terminated = -code in ENDED_BY_OTHERS and -code != signal.SIGKILL
        if fault is not None and (not launch.debug or is_terminated):
            raise fault
        missing = missing_operators(printed, errors)
        if missing:
            failure = (
                f"ExecuTorch's runtime on {device.name} lacks {', '.join(missing)}, which runs on the CPU: "
                f"replace it in the model's forward, or use a native runner that has it; {failure}"
            )
        return _failed(launch, failure, folder, command, log, missing)
    latencies = latencies_ms(printed)
    if is_hosted and len(latencies) != launch.samples:
        latencies = ()  # the service has not measured all
    if (latencies or result.dropped_bytes) and len(latencies) != launch.samples:
        dropped = f"; {result.dropped_bytes} bytes of its output were dropped" if result.dropped_bytes else ""
        message = f"the {launch.title} printed {len(latencies)} latencies for {launch.samples} samples{dropped}"
        return _failed(launch, message, folder, command, log)
    return LaunchResult(launch=launch, folder=folder, command=command, latencies_ms=latencies, log=log)


def _machine_fault(launch: Launch, result: CommandResult, printed: str, device: Device) -> QnnsweepError | None:
    """Return the fault of the machine that ended a program; None if the program ended by itself, for another reason."""
    shortage = shortage_in(printed)
    if -result.exit_code in ENDED_BY_OTHERS:
        how = (
            f"another process ended it with {signal.Signals(-result.exit_code).name}, as a system short of memory does"
        )
    elif shortage is not None:
        how = str(shortage)
    else:
        return None
    message = f"the {launch.title} did not run to its end on {device.name}: {how}"
    return MachineFault(message) if device.config.transport is TransportKind.local else DeviceError(message)


def _run(
    deployment: Deployment, launch: Launch, request: RunRequest, device: Device, store: Store
) -> list[CommandResult]:
    """Start the runner, and start it again whenever the host has computed what it waited for.

    Return the results of all starts: after each but the last, the runner waited.
    """
    results = [device.transport.run(request)]
    if not device.config.runner.divides or results[-1].exit_code != WAITING:
        return results
    assert request.folder is not None, "the folder of the launch"
    methods = methods_of(launch.program, store)
    while len(results) <= most_rounds(methods) and results[-1].exit_code == WAITING:
        answer(launch, methods, len(results) - 1, deployment.bundle.runner, request.folder, device=device, store=store)
        results.append(device.transport.run(request))
    return results


def _failed(
    launch: Launch, failure: str, folder: str, command: Command, log: Blob, missing: Sequence[str] = ()
) -> LaunchResult:
    """Return the result of a debug program that failed.

    Raises RunnerFailed if another program failed, or if the request gives the debug program too small a buffer.
    """
    if not launch.debug or _FULL_BUFFER in failure:
        raise RunnerFailed(failure, log=log.sha256, command=command, missing=tuple(missing))
    return LaunchResult(launch=launch, folder=folder, command=command, latencies_ms=(), log=log, failure=failure)


def _runner_command(
    deployment: Deployment, launch: Launch, device: Device, store: Store
) -> tuple[list[str], Mapping[str, str]]:
    """Return the command line and the environment of the device's runner."""
    flags = runner_arguments(launch)
    if device.config.runner is not RunnerKind.native:
        # -P: no module is imported from the folder of the runner's file, which is the folder of all blobs.
        return [device.python, "-P", blob_path(deployment.bundle.runner), *flags], _environment(device)
    native = {name: store.put_file(path) for name, path in device.native.items()}
    folder = f"{deployment.work_folder}/{native_folder(native)}"
    libraries = {"LD_LIBRARY_PATH": folder, "ADSP_LIBRARY_PATH": folder}
    return [f"{folder}/{RUNNER}", *flags], libraries | dict(device.environment)


def _environment(device: Device) -> Mapping[str, str]:
    """Return the environment of a Python runner. That for AI Hub gets its settings in a variable."""
    if device.config.runner is not RunnerKind.aihub:
        return device.environment
    settings = asdict(device.config.aihub) | {"wait_s": _OF_DEADLINE * device.config.deadline_s}
    return dict(device.environment) | {hosted.SETTINGS: json.dumps(settings)}


def _is_responsive(device: Device) -> bool:
    try:
        return device.transport.run(RunRequest(["true"], deadline_s=_RESPONSE_S)).exit_code == 0
    except DeviceError:
        return False
