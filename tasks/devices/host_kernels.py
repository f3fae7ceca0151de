"""The operators on the CPU of a program whose device has ONNX Runtime, but no PyTorch: the host computes them."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.local import LocalTransport
from qnnsweep.tasks.devices.runner_cli import last_lines
from qnnsweep.tasks.devices.transport import RunRequest
from qnnsweep.tasks.errors import DeviceError, RunnerFailed
from qnnsweep.tasks.records import Blob, Command, Launch
from qnnsweep.tasks.records.waiting import ANSWERS, ASKED, KERNELS, REQUESTS, tensor_positions
from qnnsweep.tasks.storage.store import Store

_REQUEST_BYTES = 1024
"""The most bytes of one request, as the runner writes it."""
_KEY = re.compile(r"[0-9a-f]{64}")


def methods_of(description: Blob, store: Store) -> Mapping[str, Any]:
    """Return the methods of a program, by name. `description`: see `Parts`."""
    return {method["name"]: method for method in json.loads(store.read(description))["methods"]}


def most_rounds(methods: Mapping[str, Any]) -> int:
    """Return how often a program can wait: once per operator on the CPU."""
    return sum("kernel" in call for method in methods.values() for call in method["calls"])


def answer(
    launch: Launch, methods: Mapping[str, Any], round_: int, runner: Blob, folder: str, *, device: Device, store: Store
) -> None:
    """Compute what a launch waits for on this machine, and send the results to the launch's folder on the device.

    `methods`: those of the launch's program. `round_`: how often the launch has waited before. Raises DeviceError if
    the channel fails or if the device asks for something that the program does not have, and RunnerFailed if the
    operators cannot be computed.
    """
    with store.scratch("kernels") as scratch:
        most = _REQUEST_BYTES * most_rounds(methods) * launch.samples
        requests = _requests(_text(folder, most, scratch / "requests", device), methods, device)
        sizes = {f"{ASKED}/{request['key']}_{at}": _size(spec) for request, at, spec in _tensors(requests, methods)}
        work = scratch / "work"
        device.transport.pull(folder, sizes, work)
        (work / REQUESTS).write_text(json.dumps(requests))
        store.verify(runner)
        argv = [sys.executable, "-P", *map(str, (store.path(runner), KERNELS, store.path(launch.program), work))]
        ran = LocalTransport().run(RunRequest(argv, deadline_s=device.config.deadline_s))
        if ran.exit_code != 0:
            end = last_lines(ran.stderr.decode(errors="replace").splitlines())
            raise RunnerFailed(
                f"operators of the {launch.title} cannot be computed on this machine\n{end}",
                log=store.put_bytes(ran.stdout + b"\n" + ran.stderr).sha256,
                command=Command(argv=tuple(argv), exit_code=ran.exit_code, seconds=ran.seconds),
            )
        device.transport.push(work / ANSWERS, f"{folder}/{ANSWERS}-{round_}")


def _text(folder: str, most: int, target: Path, device: Device) -> str:
    """Return the file with the requests. Raises DeviceError if it is missing or too large."""
    counted = device.run(["wc", "-c", REQUESTS], folder=folder)
    match = re.match(rb" *([0-9]{1,15}) ", counted.stdout)
    if counted.exit_code != 0 or match is None or not 0 < (size := int(match[1])) <= most:
        raise DeviceError(f"{device.name} waits for the host, but its requests cannot be read")
    device.transport.pull(folder, {REQUESTS: size}, target)
    return (target / REQUESTS).read_text(encoding="utf-8", errors="replace")


def _requests(text: str, methods: Mapping[str, Any], device: Device) -> Sequence[Mapping[str, Any]]:
    """Return the checked requests: each is about an operator of the program, and about tensors that it has."""
    try:
        read: Any = json.loads(text)
        if not isinstance(read, list) or not read:
            raise ValueError(text[:200])
        requests = [{name: request[name] for name in ("method", "call", "key", "reads")} for request in read]
        for request in requests:
            method = methods[request["method"]]
            call, reads = method["calls"][request["call"]], request["reads"]
            is_of_call = (
                "kernel" in call
                and len(set(reads)) == len(reads)
                and {*reads} <= {*tensor_positions(call["arguments"])}
            )
            if request["call"] < 0 or not is_of_call or not _KEY.fullmatch(request["key"]):
                raise ValueError(text[:200])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise DeviceError(f"{device.name} asks for an operator that the program does not have") from error
    return requests


def _tensors(requests: Sequence[Mapping[str, Any]], methods: Mapping[str, Any]) -> list[tuple[Any, str, Any]]:
    """Return what the requests read: the request, the position and the description of each tensor."""
    return [
        (request, position, methods[request["method"]]["values"][position])
        for request in requests
        for position in request["reads"]
    ]


def _size(spec: Any) -> int:
    return math.prod(spec["shape"]) * np.dtype(spec["dtype"]).itemsize
