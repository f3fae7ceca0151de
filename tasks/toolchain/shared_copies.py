"""Deep copies of programs that share what nothing changes in place: the weights, and the ancestry of the nodes.

ExecuTorch copies a program several times per conversion and compilation, and every pass copies all of the ancestry of
every node, which takes a sixth of the time of a conversion.
"""

import copy
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.traceback import NodeSource


def share_in_copies() -> None:
    """Let `copy.deepcopy` share the tensors of programs and the sources of nodes, in this process from now on."""
    NodeSource.__deepcopy__ = lambda source, _memo: source  # pyright: ignore[reportAttributeAccessIssue]
    ExportedProgram.__deepcopy__ = _copied  # pyright: ignore[reportAttributeAccessIssue]


def _copied(program: ExportedProgram, memo: dict[int, Any]) -> ExportedProgram:
    """Return a copy of a program with dicts and a graph of its own, whose entries are the same tensors."""
    held = (*program.state_dict.values(), *program.constants.values())
    memo |= {id(value): value for value in held if isinstance(value, torch.Tensor)}
    memo[id(program)] = copied = type(program).__new__(type(program))
    for name, value in vars(program).items():
        setattr(copied, name, copy.deepcopy(value, memo))
    return copied
