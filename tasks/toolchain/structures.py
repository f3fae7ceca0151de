"""Arguments and answers of a module as named tensors, whatever structure they have.

A structure is everything that PyTorch's pytrees take apart (dicts, lists, tuples, named tuples, and classes that are
registered there, as the outputs of transformers are), and every dataclass. A compiled program knows only tensors.
"""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

_PLAIN = (tuple, list, dict)


def named_leaves(value: object) -> list[tuple[str, Any]]:
    """Return what a structure consists of, with names.

    The names are the positions, keys and fields on the way, joined by dots; the name is empty if the value is no
    structure. Numbers, None and objects of unknown classes are leaves.
    """
    found: list[tuple[str, Any]] = []
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        name = ".".join(pytree.keystr((key,)).strip("[]'.") for key in path)
        fields = _fields(leaf)
        if fields is None:
            found.append((name, leaf))
        else:
            found += [(".".join(filter(None, (name, inner))), part) for inner, part in named_leaves(fields)]
    return found


def with_leaves(value: Any, leaves: Iterator[Any]) -> Any:
    """Return a structure as `value` with other leaves, in the order of `named_leaves`."""
    found, spec = pytree.tree_flatten(value)
    return pytree.tree_unflatten([_with_leaves(leaf, leaves) for leaf in found], spec)


def is_plain(value: object) -> bool:
    """Return whether a value is a tensor, or tuples, lists and dicts of tensors alone."""
    if isinstance(value, torch.Tensor):
        return True
    if type(value) not in _PLAIN:
        return False
    return all(is_plain(part) for part in (value.values() if isinstance(value, dict) else value))  # type: ignore[union-attr]


def _with_leaves(leaf: Any, leaves: Iterator[Any]) -> Any:
    fields = _fields(leaf)
    if fields is None:
        return next(leaves)
    changed = copy.copy(leaf)
    for name, part in with_leaves(fields, leaves).items():
        object.__setattr__(changed, name, part)
    return changed


def _fields(leaf: object) -> dict[str, Any] | None:
    """Return the fields of a dataclass; None for everything else."""
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return None
    return {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf) if hasattr(leaf, field.name)}
