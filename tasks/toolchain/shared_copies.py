"""Deep copies of programs that share what no conversion changes in place: the weights, and the ancestry of the nodes.

ExecuTorch copies a program several times per conversion and compilation, and every pass copies all of the ancestry of
every node, which takes a sixth of the time of a conversion.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.traceback import NodeSource


def share_sources() -> None:
    """Let `copy.deepcopy` share the sources of nodes, in this process from now on. Nothing changes a source."""
    NodeSource.__deepcopy__ = lambda source, _memo: source  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def sharing_tensors() -> Iterator[None]:
    """Within this context, copies of programs share their tensors: they may be converted, but not run.

    A run could write into a buffer.
    """
    before = vars(ExportedProgram).get("__deepcopy__")
    ExportedProgram.__deepcopy__ = _copied  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        if before is None:
            del ExportedProgram.__deepcopy__  # pyright: ignore[reportAttributeAccessIssue]


def _copied(program: ExportedProgram, memo: dict[int, Any]) -> ExportedProgram:
    """Return a copy of a program with dicts and a graph of its own, whose entries are the same tensors."""
    for value in (*program.state_dict.values(), *program.constants.values()):
        if isinstance(value, torch.Tensor):
            memo.setdefault(id(value), value)  # what was copied before this program stays copied
    memo[id(program)] = copied = type(program).__new__(type(program))
    for name, value in vars(program).items():
        setattr(copied, name, copy.deepcopy(value, memo))
    return copied
