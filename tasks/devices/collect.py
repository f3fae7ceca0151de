"""The step collect of a measurement: Execution -> Capture. Files are checked on arrival."""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from safetensors.numpy import save

from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.runner_cli import DEBUG_OUTPUT, ETDUMP, output_file, step_input_file, step_output_file
from qnnsweep.tasks.devices.transport import batches
from qnnsweep.tasks.errors import DeviceError, EvidenceError, OutputSizeDiffers
from qnnsweep.tasks.records import (
    Blob,
    Capture,
    CapturedMethod,
    DebugFiles,
    Execution,
    LaunchedMethod,
    LaunchResult,
    TensorSpec,
)
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store

_ETDUMP_BYTES = 2**21
"""The most bytes of an ETDump beside its events."""
_EVENT_BYTES = 256
"""The most bytes of an event in an ETDump; 80 to 180 were seen."""
_DIGEST = re.compile(r"([0-9a-f]{64})[ *]{1,2}(\S+)")
_SIZE = re.compile(r" *([0-9]{1,15}) +(\S+)")


def collect(execution: Execution, *, device: Device, store: Store) -> Capture:
    """Pull the files of every launch, and compare their digests with the digests that the device computes.

    The files are removed from the device when the lease ends. Raises DeviceError if the channel fails, and
    EvidenceError if a file is missing, damaged or of the wrong size.
    """
    methods: dict[str | None, LaunchedMethod] = {}
    results: defaultdict[str | None, list[LaunchResult]] = defaultdict(list)
    for result in execution.results:
        for method in result.launch.methods:
            methods.setdefault(method.name, method)
            results[method.name].append(result)
    return Capture(
        device=execution.device,
        bytes_sent=execution.bytes_sent,
        methods=tuple(_captured(results[name], method, device, store) for name, method in methods.items()),
    )


def collect_again(capture: Capture, execution: Execution, *, device: Device, store: Store) -> Capture:
    """Return a capture with the files of further launches of a method's debug programs; see `collect`.

    They ran in the lease of the first launches.
    """
    methods: list[CapturedMethod] = []
    for captured in capture.methods:
        names = {result.launch.method for result in captured.results if result.launch.debug}
        further = [result for result in execution.results if result.launch.method in names]
        files = (_debug_files(again, captured.results, device, store) for again in further if again.failure is None)
        methods.append(replace(captured, results=(*captured.results, *further), debug=(*captured.debug, *files)))
    return replace(capture, methods=tuple(methods), bytes_sent=capture.bytes_sent + execution.bytes_sent)


def _captured(results: list[LaunchResult], method: LaunchedMethod, device: Device, store: Store) -> CapturedMethod:
    """Pull the files of the launches of one method."""
    outputs: dict[str, tuple[Blob, Blob]] = {}
    debug: list[DebugFiles] = []
    for result in results:
        if result.launch.debug and result.failure is None:
            debug.append(_debug_files(result, results, device, store))
        elif not result.launch.debug:
            outputs[result.launch.name] = _pull(result, method, device, store)[:2]
    profile = outputs.get("profile")
    return CapturedMethod(
        results=tuple(results),
        outputs=outputs["shipping"][0],
        etdump=outputs["shipping"][1],
        debug=tuple(debug),
        outputs_profile=profile[0] if profile else None,
        etdump_profile=profile[1] if profile else None,
    )


def _debug_files(result: LaunchResult, results: Sequence[LaunchResult], device: Device, store: Store) -> DebugFiles:
    """Pull the files of a debug program. `results`: of the launches of its method."""
    (method,) = result.launch.methods
    outputs, etdump, buffer = _pull(result, method, device, store)
    assert buffer is not None, "it was pulled, because it is a debug launch"
    shipping = next(other for other in results if other.launch.name == "shipping")
    return DebugFiles(
        samples=result.launch.numbers,
        outputs=outputs,
        etdump=etdump,
        buffer=buffer,
        part=result.launch.part,
        inputs=_inputs(shipping, method.name, result.launch.numbers, device, store) if shipping.launch.driven else None,
    )


def _inputs(shipping: LaunchResult, name: str | None, samples: Sequence[int], device: Device, store: Store) -> Blob:
    """Pull the inputs of the steps whose operators were captured, and store them. `name`: of their method."""
    method = next(method for method in shipping.launch.methods if method.name == name)
    files = {
        step_input_file((method.positions or ())[sample], index): (tensor_key(sample, spec.name), spec)
        for sample in samples
        for index, spec in enumerate(method.inputs or ())
    }
    expected = {file: (f"{file} ({spec.name})", spec) for file, (_, spec) in files.items()}
    arrays, _ = _arrived(shipping, expected, {}, device, store)
    return store.put_bytes(save({files[file][0]: array for file, array in arrays.items()}))


def _output_files(result: LaunchResult, method: LaunchedMethod) -> dict[str, tuple[int, int]]:
    """Map the files of a method's outputs to their samples and indices."""
    indices = range(len(method.outputs))
    if result.launch.driven:
        positions = enumerate(method.positions or ())
        return {step_output_file(place, index): (sample, index) for sample, place in positions for index in indices}
    rows = enumerate(result.launch.numbers)
    return {output_file(row, index): (sample, index) for row, sample in rows for index in indices}


def _pull(result: LaunchResult, method: LaunchedMethod, device: Device, store: Store) -> tuple[Blob, Blob, Blob | None]:
    """Pull the outputs, the etdump and the debug buffer of one launch of a method, and store them."""
    outputs = _output_files(result, method)
    expected = {
        name: (f"output {index} ({method.outputs[index].name})", method.outputs[index])
        for name, (_, index) in outputs.items()
    }
    limits = {ETDUMP: _ETDUMP_BYTES + _EVENT_BYTES * result.launch.events * result.launch.inferences}
    if result.launch.debug:
        limits[DEBUG_OUTPUT] = result.launch.debug_buffer_bytes
    arrays, blobs = _arrived(result, expected, limits, device, store)
    tensors = {tensor_key(*outputs[name]): array for name, array in arrays.items()}
    return store.put_bytes(save(tensors)), blobs[ETDUMP], blobs.get(DEBUG_OUTPUT)


def _arrived(
    result: LaunchResult,
    tensors: Mapping[str, tuple[str, TensorSpec]],
    limits: Mapping[str, int],
    device: Device,
    store: Store,
) -> tuple[dict[str, np.ndarray], dict[str, Blob]]:
    """Pull files of a launch. Return the tensors, and the blobs of the other files. No other code pulls from a device.

    `tensors`: the files of tensors, with their names for an error message. `limits`: the most bytes of each other file.
    Nothing is pulled if any file has another size than expected, so that a device decides about no size.
    """
    names = [*tensors, *limits]
    sizes = _sizes(result, names, device)
    for name, size in sizes.items():
        if name in limits and size > limits[name]:
            raise EvidenceError(f"{device.name}: {name} has {size} bytes, but at most {limits[name]} were expected")
        if name in tensors:
            label, spec = tensors[name]
            if size != (expected := math.prod(spec.shape) * np.dtype(spec.dtype).itemsize):
                raise OutputSizeDiffers(f"{label} has {size} bytes; {spec.dtype}{list(spec.shape)} has {expected}")
    digests = _digests(result, names, device)
    arrays: dict[str, np.ndarray] = {}
    blobs: dict[str, Blob] = {}
    with store.scratch("arriving") as folder:
        device.transport.pull(result.folder, sizes, folder / "launch")
        for name in names:
            arrived = folder / "launch" / name
            if name in tensors:
                _, spec = tensors[name]
                data = arrived.read_bytes()
                _confirm(name, hashlib.sha256(data).hexdigest(), digests, device)
                arrays[name] = np.frombuffer(data, spec.dtype).reshape(spec.shape)
            else:  # a debug buffer may be larger than memory
                blobs[name] = store.put_file(arrived)
                _confirm(name, blobs[name].sha256, digests, device)
    return arrays, blobs


def _confirm(name: str, sha256: str, digests: Mapping[str, str], device: Device) -> None:
    if sha256 != digests[name]:
        raise EvidenceError(f"{device.name}: {name} changed during the transfer; run again")


def _digests(result: LaunchResult, names: list[str], device: Device) -> dict[str, str]:
    return {name: match[1] for name, match in _per_file(["sha256sum"], _DIGEST, result, names, device).items()}


def _sizes(result: LaunchResult, names: list[str], device: Device) -> dict[str, int]:
    """Return the size of each file in bytes."""
    return {name: int(match[1]) for name, match in _per_file(["wc", "-c"], _SIZE, result, names, device).items()}


def _per_file(
    program: list[str], pattern: re.Pattern[str], result: LaunchResult, names: list[str], device: Device
) -> dict[str, re.Match[str]]:
    """Run a program that prints a line per file. Return the match of each file's line."""
    matches: dict[str, re.Match[str]] = {}
    for batch in batches(names):
        printed = device.run([*program, *batch], folder=result.folder)
        if printed.exit_code != 0:
            reason = printed.stderr.decode(errors="replace").strip()
            raise EvidenceError(f"{device.name}: the runner succeeded, but a file that it writes is missing: {reason}")
        lines = printed.stdout.decode(errors="replace").splitlines()
        for name, line in zip_longest(batch, lines[: len(batch)], fillvalue=""):
            if (match := pattern.fullmatch(line)) is None or match[2] != name:
                raise DeviceError(f"{device.name}: {program[0]} printed {line[:200]!r} for {name}")
            matches[name] = match
    return matches
