"""The program that torch.export makes of a module."""

from collections.abc import Sequence

import torch

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.toolchain.batched import add_batches
from qnnsweep.tasks.toolchain.empties import drop_empty_tensors
from qnnsweep.tasks.toolchain.flat_module import is_flattened, with_flat_outputs
from qnnsweep.tasks.toolchain.fold import fold_constants
from qnnsweep.tasks.toolchain.nodes import make_portable
from qnnsweep.tasks.toolchain.recurrent import unrolled
from qnnsweep.tasks.toolchain.refusals import cannot_export, check_operators, check_values
from qnnsweep.tasks.toolchain.repeatable import copies
from qnnsweep.tasks.toolchain.structures import is_plain
from qnnsweep.tasks.toolchain.user_code import EXPORTED


def traced(
    name: str, module: torch.nn.Module, inputs: Sequence[torch.Tensor], answer: object
) -> torch.export.ExportedProgram:
    """Return the exported program of a module. `answer`: what the module returns for these inputs.

    An answer that is more than tuples, lists and dicts of tensors becomes a dict of named tensors, so that no later
    process needs the classes of the answer. A program that the factory returned is taken as it is. Values that depend
    on no input and on no weight are constants of the program. Raises RequestError if the model `name` has no program
    that is the same for all inputs.
    """
    program = getattr(module, "meta", {}).get(EXPORTED)
    if not (isinstance(program, torch.export.ExportedProgram) and is_plain(answer) and _takes(program, inputs)):
        program = _exported(name, module if is_plain(answer) else with_flat_outputs(module), inputs)
    check_values(name, program)
    program = unrolled(program)
    drop_empty_tensors(program)
    add_batches(program)
    fold_constants(program)
    check_operators(name, program)
    make_portable(program)
    return program


def _exported(name: str, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """Return the program of a module, with both modes of torch.export. Each of them can trace what the other cannot."""
    errors: list[Exception] = []
    # Without the strict mode, the code that takes structures apart is run, and not traced.
    for strict in (False, True) if is_flattened(module) else (True, False):
        try:
            return torch.export.export(module, copies(inputs), strict=strict)
        except Exception as error:  # noqa: BLE001 - PyTorch and the user's code may raise anything
            raise_shortage(error)
            errors.append(error)
    raise cannot_export(name, errors) from errors[0]


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
