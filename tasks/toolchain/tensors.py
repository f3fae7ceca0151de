"""Torch tensors in blobs of the safetensors format, which stores names and dtypes and is read without pickle."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.atomic import translate_os_errors
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.structures import named_leaves

_OS_ERROR = re.compile(r"\(os error (\d+)\)")

LARGEST_BIAS = 2**31 - 128
"""The largest int32 that is a float32: beyond it, a bias saturates."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor as an array. NumPy has no bfloat16: the array is then in float32."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).detach().cpu().numpy()


def put_tensors(store: Store, tensors: Mapping[str, torch.Tensor]) -> Blob:
    """Store tensors. They are written from where they are, but for those that share memory or are not contiguous."""
    owned: dict[str, torch.Tensor] = {}
    owners: set[int] = set()
    for key, value in tensors.items():
        tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        owned[key] = tensor.clone() if memory in owners else tensor
        owners.add(memory)
    with store.scratch("tensors") as folder:
        path = folder / "tensors"
        with translate_os_errors(path):
            _save(owned, path)
        return store.take_file(path)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file of tensors. Raises OSError; safetensors has the number of such an error in a text alone."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        if (number := _OS_ERROR.search(str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_tensors(store: Store, blob: Blob) -> dict[str, torch.Tensor]:
    """Return tensors of a blob, which are mapped from its file: only what is read is in memory."""
    store.verify(blob)
    try:
        return load_file(store.path(blob))
    except SafetensorError as error:
        raise EvidenceError(f"blob {blob.sha256} is not a safetensors file: {error}") from error


def read_samples(store: Store, blob: Blob, names: Sequence[str], count: int) -> list[tuple[torch.Tensor, ...]]:
    """Return the inputs of the first `count` samples, in the order of `names`."""
    tensors = read_tensors(store, blob)
    return [tuple(tensors[tensor_key(sample, name)] for name in names) for sample in range(count)]


def flat_outputs(answer: object) -> dict[str, torch.Tensor]:
    """Return a module's output as named tensors, in the order in which a compiled program returns them.

    A single tensor is named `output`. An element of a tuple or dict is named by its position or key; in a nested
    output, the positions and keys on the way to the element are joined by dots. What is no tensor is left out.
    """
    return {name or "output": leaf for name, leaf in named_leaves(answer) if isinstance(leaf, torch.Tensor)}


def left_out(answer: object) -> tuple[str, ...]:
    """Return what of a module's output is no tensor, such as `loss: NoneType`."""
    leaves = ((name, leaf) for name, leaf in named_leaves(answer) if not isinstance(leaf, torch.Tensor))
    return tuple(f"{name or 'output'}: {type(leaf).__name__}" for name, leaf in leaves)


def outputs_by_sample(answers: Sequence[object]) -> dict[str, torch.Tensor]:
    """Return the output tensors of all samples, by the key `<sample>/<output index>`."""
    return {
        tensor_key(sample, index): tensor
        for sample, answer in enumerate(answers)
        for index, tensor in enumerate(flat_outputs(answer).values())
    }
