"""The stage collect: Execution -> Capture. Files are checked on arrival."""

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from safetensors.numpy import save

from tasks.devices.device import Device, batches
from tasks.devices.runner_cli import DEBUG_OUTPUT, ETDUMP, output_file
from tasks.errors import DeviceError, EvidenceError
from tasks.records import Blob, Capture, Execution, LaunchResult
from tasks.records.keys import tensor_key
from tasks.stage import stage
from tasks.storage.store import Store


def collect(execution: Execution, *, device: Device, store: Store) -> Capture:
    """Pull the files of every launch, and compare their digests with the digests that the device computes.

    The files are removed from the device when the lease ends. Raises DeviceError if the channel fails, and
    EvidenceError if a file is missing, damaged or of the wrong size.
    """
    pulled = {result.launch.name: _pull(execution, result, device, store) for result in execution.results}
    shipping, debug, profile = pulled["shipping"], pulled.get("debug"), pulled.get("profile")
    return Capture(
        execution=execution,
        outputs=shipping[0],
        outputs_debug=debug[0] if debug else None,
        etdump=shipping[1],
        etdump_debug=debug[1] if debug else None,
        debug_buffer=debug[2] if debug else None,
        outputs_profile=profile[0] if profile else None,
        etdump_profile=profile[1] if profile else None,
    )


def _pull(execution: Execution, result: LaunchResult, device: Device, store: Store) -> tuple[Blob, Blob, Blob | None]:
    """Pull the outputs, the etdump and the debug buffer of one launch, and store them."""
    outputs = {
        output_file(sample, index): (sample, index)
        for sample in range(result.launch.samples)
        for index in range(len(execution.outputs))
    }
    names = [*outputs, ETDUMP, *([DEBUG_OUTPUT] if result.launch.debug else [])]
    digests = _digests(result, names, device)
    tensors: dict[str, np.ndarray] = {}
    blobs: dict[str, Blob] = {}
    with store.scratch("arriving") as folder:
        device.transport.pull(result.folder, folder / "launch")
        for name in names:
            arrived = folder / "launch" / name
            if not arrived.is_file():
                raise EvidenceError(f"{device.name}: {name} was on the device, but was not transferred; run again")
            if name in outputs:
                data = arrived.read_bytes()
                _confirm(name, hashlib.sha256(data).hexdigest(), digests, device)
                sample, index = outputs[name]
                tensors[tensor_key(sample, index)] = _decode(data, execution, index)
            else:  # a debug buffer may be larger than memory
                blobs[name] = store.put_file(arrived)
                _confirm(name, blobs[name].sha256, digests, device)
    return store.put_bytes(save(tensors)), blobs[ETDUMP], blobs.get(DEBUG_OUTPUT)


def _confirm(name: str, sha256: str, digests: Mapping[str, str], device: Device) -> None:
    if sha256 != digests[name]:
        raise EvidenceError(f"{device.name}: {name} changed during the transfer; run again")


def _digests(result: LaunchResult, names: list[str], device: Device) -> dict[str, str]:
    digests: dict[str, str] = {}
    for batch in batches(names):
        hashed = device.run(["sha256sum", *batch], folder=result.folder)
        if hashed.exit_code != 0:
            reason = hashed.stderr.decode(errors="replace").strip()
            raise EvidenceError(f"{device.name}: the runner succeeded, but a file that it writes is missing: {reason}")
        lines = [line.split(maxsplit=1) for line in hashed.stdout.decode().splitlines()]
        if len(lines) != len(batch):
            raise DeviceError(f"{device.name}: sha256sum printed {len(lines)} lines for {len(batch)} files")
        digests |= {name: line[0] for name, line in zip(batch, lines, strict=True)}
    return digests


def _decode(data: bytes, execution: Execution, index: int) -> np.ndarray:
    spec = execution.outputs[index]
    dtype = np.dtype(spec.dtype)
    expected = math.prod(spec.shape) * dtype.itemsize
    if len(data) != expected:
        raise EvidenceError(
            f"output {index} ({spec.name}) has {len(data)} bytes; {spec.dtype}{list(spec.shape)} has {expected}"
        )
    return np.frombuffer(data, dtype).reshape(spec.shape)


collect_task = stage(collect, version=1, cached=False)
