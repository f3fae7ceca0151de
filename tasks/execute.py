"""execute: Deployment -> Execution. One process a launch: a program that dies takes nothing with it."""

from __future__ import annotations

import signal

from tasks.devices.farm import Device
from tasks.devices.runner import OUTPUT_FOLDER, blob_path, last_words, latencies_ms, runner_arguments
from tasks.errors import DeviceError, RunnerFailed
from tasks.records import Command, Deployment, Execution, Launch, LaunchResult
from tasks.stage import stage
from tasks.storage.store import Store


def execute(deployment: Deployment, *, device: Device, store: Store) -> Execution:
    """Start the runner for each launch. Raises RunnerFailed when it does not end well, DeviceError for the channel."""
    results = tuple(_launch(deployment, launch, device, store) for launch in deployment.bundle.launches)
    return Execution(device=device.name, results=results, outputs=deployment.bundle.outputs)


def _launch(deployment: Deployment, launch: Launch, device: Device, store: Store) -> LaunchResult:
    folder = f"{device.lease_folder}/{launch.name}"
    made = device.run(["mkdir", "-p", f"{folder}/{OUTPUT_FOLDER}"])
    if made.exit_code != 0:
        raise DeviceError(f"{device.name}: cannot make {folder}: {made.stderr.decode(errors='replace').strip()}")
    flags = runner_arguments(
        program=blob_path(launch.program),
        input_list=blob_path(launch.input_list),
        iterations=launch.iterations,
        warm_up=launch.warm_up,
        dump=launch.debug,
        debug_buffer_bytes=launch.debug_buffer_bytes,
    )
    # -P: the runner's own folder, full of blobs, is no place to import from.
    argv = [device.python, "-P", blob_path(deployment.bundle.runner), *flags]
    result = device.run(argv, folder=folder)
    command = Command(argv=tuple(argv), exit_code=result.exit_code, seconds=result.seconds)
    printed = result.stdout.decode(errors="replace")
    log = store.put_bytes(result.stdout + b"\n" + result.stderr)
    if result.exit_code != 0:
        words = last_words(result.stderr.decode(errors="replace").splitlines() or printed.splitlines())
        raise RunnerFailed(
            f"the {launch.name} program ended with {_ending(result.exit_code)} on {device.name}\n{words}",
            log=log.sha256,
            command=command,
        )
    return LaunchResult(
        launch=launch,
        folder=folder,
        command=command,
        latencies_ms=latencies_ms(printed),
        log=log,
    )


def _ending(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else signal.Signals(-exit_code).name


execute_task = stage(execute, version=1, cached=False)
