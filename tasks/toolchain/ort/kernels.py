"""The operators of a program that no delegate computes, with PyTorch's operators of the same names.

A device without PyTorch waits for the host (see `qnnsweep.tasks.records.waiting`), where this module computes them:
`python ARCHIVE --kernels DESCRIPTION FOLDER`. A file is named by the digest of the call and of what it reads. Equal
calls have equal results, so it is of no importance which inference asked first.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnsweep.tasks.records.waiting import ANSWERS, ASKED, REQUESTS, tensor_positions

Values = Mapping[str, Any]
"""The values of a method that are known, by their positions."""


class UnknownKernelError(Exception):
    """PyTorch has no operator of a kernel's name."""


def has_pytorch() -> bool:
    """Return whether PyTorch can be imported."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def read_by(call: Any, values: Values) -> list[str]:
    """Return the positions of the tensors that a kernel reads. Those that it writes are not known yet."""
    return [position for position in _positions(call) if position in values]


def written_by(call: Any, values: Values) -> list[str]:
    """Return the positions of the tensors that a kernel writes."""
    return [position for position in _positions(call) if position not in values]


def key_of(call: Any, arrays: Sequence[Any]) -> str:
    """Return the digest of a call and of what it reads."""
    digest = hashlib.sha256(json.dumps(call, sort_keys=True).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def compute(call: Any, specs: Any, values: Values) -> tuple[dict[str, Any], int]:
    """Return what a kernel writes, by position, and the time that it takes in ns. `specs`: the values of its method.

    Raises UnknownKernelError.
    """
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the operators of quantized_decomposed

    function = _registered(call["kernel"])
    written = {
        position: torch.empty(specs[position]["shape"], dtype=getattr(torch, specs[position]["dtype"]))
        for position in written_by(call, values)
    }
    tensors = {position: torch.from_numpy(values[position]) for position in read_by(call, values)} | written
    passed: list[Any] = []
    named: dict[str, Any] = {}
    for parameter, argument in zip(function._schema.arguments, call["arguments"], strict=False):
        value = _given(argument, tensors)
        if parameter.kwarg_only:
            named[parameter.name] = value
        else:
            passed.append(value)
    start = time.monotonic_ns()
    function(*passed, **named)
    took_ns = time.monotonic_ns() - start
    return {position: tensor.contiguous().numpy() for position, tensor in written.items()}, took_ns


def _registered(kernel: str) -> Any:
    """Return PyTorch's operator of a kernel's name. Nothing else is ever called, and none that uses a file.

    The name may come from a store that others can write to. Raises UnknownKernelError.
    """
    import torch

    name, _, overload = kernel.rpartition(".")
    namespace, _, operator = name.partition("::")
    try:
        function = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    except AttributeError as error:
        raise UnknownKernelError(f"{kernel} runs on the CPU, and PyTorch has no such operator") from error
    if not isinstance(function, torch._ops.OpOverload):
        raise UnknownKernelError(f"{kernel} runs on the CPU, and is no operator of PyTorch")
    if any(argument.name == "filename" for argument in function._schema.arguments):
        raise UnknownKernelError(f"{kernel} uses a file")
    return function


def main(description: Path, folder: Path) -> int:
    """Compute the requests in a folder, and write the results to the folder `ANSWERS` in it. Return an exit code."""
    methods = {method["name"]: method for method in json.loads(description.read_text())["methods"]}
    (folder / ANSWERS).mkdir()
    for request in json.loads((folder / REQUESTS).read_text()):
        method = methods[request["method"]]
        call = method["calls"][request["call"]]
        values = {
            position: array_in(folder / ASKED / f"{request['key']}_{position}", method["values"][position])
            for position in request["reads"]
        }
        try:
            written, _ = compute(call, method["values"], values)
        except UnknownKernelError as error:
            print(error, file=sys.stderr)
            return 1
        for position, array in written.items():
            (folder / ANSWERS / f"{request['key']}_{position}").write_bytes(array.tobytes())
    return 0


def array_in(file: Path, spec: Any) -> Any:
    """Return the array in a file."""
    import numpy as np

    return np.fromfile(file, spec["dtype"]).reshape(spec["shape"])


def _positions(call: Any) -> dict[str, None]:
    """Return the positions of the tensors in the arguments of a kernel, each once."""
    return dict.fromkeys(tensor_positions(call["arguments"]))


def _given(argument: Any, tensors: Mapping[str, Any]) -> Any:
    if "list" in argument:
        return [_given(entry, tensors) for entry in argument["list"]]
    return tensors[argument["value"]] if "value" in argument else argument["scalar"]
