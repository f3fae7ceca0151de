"""The program that torch.export makes of a module."""

from collections.abc import Sequence

import torch

from qnnsweep.tasks.toolchain.flat_module import is_flattened, with_flat_outputs
from qnnsweep.tasks.toolchain.fold import fold_constants
from qnnsweep.tasks.toolchain.repeatable import copies
from qnnsweep.tasks.toolchain.structures import is_plain
from qnnsweep.tasks.toolchain.user_code import EXPORTED


def traced(module: torch.nn.Module, inputs: Sequence[torch.Tensor], answer: object) -> torch.export.ExportedProgram:
    """Return `_exported`, with constants in place of the values that depend on no input and no weight."""
    program = _exported(module, inputs, answer)
    fold_constants(program)
    return program


def _exported(module: torch.nn.Module, inputs: Sequence[torch.Tensor], answer: object) -> torch.export.ExportedProgram:
    """Return the exported program of a module. `answer`: what the module returns for these inputs.

    An answer that is more than tuples, lists and dicts of tensors becomes a dict of named tensors, so that no later
    process needs the classes of the answer. A program that the factory returned
    is taken as it is. An error of torch.export is raised unchanged.
    """
    program = getattr(module, "meta", {}).get(EXPORTED)
    if isinstance(program, torch.export.ExportedProgram) and is_plain(answer) and _takes(program, inputs):
        return program
    if not is_plain(answer):
        module = with_flat_outputs(module)
    # Without the strict mode, the code that takes structures apart is run, and not traced.
    return torch.export.export(module, copies(inputs), strict=not is_flattened(module))


def _takes(program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]) -> bool:
    """Return whether a program takes these inputs by position, in these shapes alone."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    taken = [values.get(str(name)) for name in program.graph_signature.user_inputs]
    arguments, _ = program.example_inputs or ((), {})
    return (
        len(arguments) == len(taken) == len(inputs)
        and not program.range_constraints
        and all(isinstance(argument, torch.Tensor) for argument in arguments)
        and all(isinstance(value, torch.Tensor) for value in taken)
    )
