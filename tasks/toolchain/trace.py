"""The program that torch.export makes of a module."""

from collections.abc import Sequence

import torch

from qnnsweep.tasks.toolchain.flat_module import is_flattened, with_flat_outputs
from qnnsweep.tasks.toolchain.repeatable import copies
from qnnsweep.tasks.toolchain.structures import is_plain


def traced(module: torch.nn.Module, inputs: Sequence[torch.Tensor], answer: object) -> torch.export.ExportedProgram:
    """Return the exported program of a module. `answer`: what the module returns for these inputs.

    An answer that is more than tuples, lists and dicts of tensors becomes a dict of named tensors, so that no later
    process needs the classes of the answer. An error of torch.export is raised unchanged.
    """
    if not is_plain(answer):
        module = with_flat_outputs(module)
    # Without the strict mode, the code that takes structures apart is run, and not traced.
    return torch.export.export(module, copies(inputs), strict=not is_flattened(module))
