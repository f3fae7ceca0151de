"""Models that change themselves or their inputs, found before anything is quantized.

The results of such a model depend on earlier calls. Then no sample can be compared, and a compiled program, which keeps
no state between its calls unless the model declares it, is another function.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.numerics.noise import lowest_snr
from qnnsweep.tasks.numerics.operators import compare_values
from qnnsweep.tasks.records.source_lines import quoted_line
from qnnsweep.tasks.records.vocabulary import Difference
from qnnsweep.tasks.toolchain.tensors import array_of, flat_outputs
from qnnsweep.tasks.toolchain.writes import is_in_training, random_lines, where, writes

Inputs = Sequence[torch.Tensor]
SAME_FUNCTION_DB = 80.0
"""Two runs of one float32 function have at least this SNR. Where only the order of sums differs, they have 110 dB."""
_DECLARE = "make it an input and an output of the model, and declare it in model.states (docs/models.md)"
_OWN = frozenset(vars(torch.nn.Module()))
"""The attributes of every module."""


def copies(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Return copies of the inputs, which a model may change."""
    return tuple(value.clone() for value in inputs)


def another_function(answer: object, expected: object) -> str | None:
    """Return how far two answers of a model are from each other, in words; None if only their last bits differ."""
    pairs = zip(flat_outputs(answer).values(), flat_outputs(expected).values(), strict=True)
    compared = [compare_values(*map(array_of, pair)) for pair in pairs]
    difference, snr_db = lowest_snr([(output.status, output.gap.snr_db) for output in compared])
    return _in_words(difference, snr_db)


def _in_words(difference: Difference | None, snr_db: float | None) -> str | None:
    if difference == "infinite":
        return "no finite SNR"
    return f"{snr_db:.1f} dB" if snr_db is not None and snr_db < SAME_FUNCTION_DB else None


def check_inputs(name: str, inputs: Sequence[str], program: ExportedProgram) -> None:
    """Raise RequestError if the model changes its inputs in place. `inputs`: their names, in the program's order."""
    named = dict(zip(program.graph_signature.user_inputs, inputs, strict=True))
    changing = [
        (named[write.base.name], where(write.node)) for write in writes(program.graph) if write.base.name in named
    ]
    if changing:
        changed = changing[0][0]
        raise RequestError(
            f"the model {name} changes its input {', '.join(dict.fromkeys(entry for entry, _ in changing))}"
            f"{_at(dict.fromkeys(line for _, line in changing))}; compute a new tensor instead, such as "
            f"{changed} = {changed} + 1 in place of {changed} += 1"
        )


def check_states(name: str, program: ExportedProgram) -> None:
    """Raise RequestError if the model changes buffers in `forward` on which its outputs depend."""
    held = program.graph_signature.inputs_to_buffers
    if not any(write.base.name in held for write in writes(program.graph)) and not any(
        is_in_training(node) for node in program.graph.nodes
    ):
        return
    functional = program.run_decompositions({})
    signature = functional.graph_signature
    nodes = {node.name: node for node in functional.graph.nodes}
    read = {buffer: nodes[placeholder] for placeholder, buffer in signature.inputs_to_buffers.items()}
    changed = {
        buffer: nodes[node]
        for node, buffer in signature.buffers_to_mutate.items()
        if _reaches(read[buffer], {nodes[output] for output in signature.user_outputs if isinstance(output, str)})
    }
    if not changed:
        return
    buffers = ", ".join(changed)
    lines = dict.fromkeys(where(node) for node in changed.values())
    norm = next(
        (source for node in changed.values() for source in node.all_input_nodes if is_in_training(source)), None
    )
    if norm is not None:
        raise RequestError(
            f"the model {name} computes with batch statistics, as in training{_at([where(norm)])}: each call changes "
            f"{buffers}; call eval() on the module, or pass training=False"
        )
    raise RequestError(
        f"the model {name} changes its buffer {buffers} in forward{_at(lines)}, so that its outputs depend on earlier "
        f"calls; {_DECLARE}"
    )


def check_repeated(name: str, changed: str | None, program: ExportedProgram | None, state: "State") -> None:
    """Raise RequestError if a second call gave another result. `changed`: how far it is, from `another_function`."""
    if changed is None:
        return
    text = f"the model {name} gives another result when it is called again with the same inputs ({changed})"
    if lines := random_lines(program.graph) if program else ():
        remedy = "switch dropout off, or make the random numbers an input of the model"
        raise RequestError(f"{text}, because it draws random numbers{_at(lines)}; {remedy}")
    if attributes := state.changes():
        what = ", ".join(attribute for attribute, _ in attributes)
        lines = [line for _, line in attributes if line]
        raise RequestError(f"{text}, because forward changes {what}{_at(lines)}; {_DECLARE}")
    raise RequestError(f"{text}; remove what forward keeps from one call to the next, and the random numbers it draws")


def check_traced(name: str, sample: str, answer: object, expected: object) -> None:
    """Raise RequestError if the program of torch.export is another function than the module."""
    changed = another_function(answer, expected)
    if changed is not None:
        raise RequestError(
            f"the program that torch.export makes of the model {name} is another function ({changed} on {sample}, "
            "where nothing is quantized); look for branches on Python values in forward, such as counters, "
            "torch.compiler.is_compiling() or attributes that change"
        )


@dataclass(frozen=True, slots=True)
class _Attribute:
    module: torch.nn.Module
    path: str
    name: str
    value: Any
    mark: object


class State:
    """The buffers and attributes of a module and its submodules at one moment."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._attributes = [*_attributes(module)]

    def changes(self) -> list[tuple[str, str | None]]:
        """Return the attributes that have changed since, each with the line that assigns it, if it is found."""
        before = {(entry.path, entry.name): entry.mark for entry in self._attributes}
        return [
            (f"self.{entry.name}", _assignment(entry.module, entry.name))
            for entry in _attributes(self._module)
            if before.get((entry.path, entry.name)) != entry.mark
        ]


def _attributes(module: torch.nn.Module) -> Iterator[_Attribute]:
    for path, owner in module.named_modules():
        own = {name: value for name, value in vars(owner).items() if name not in _OWN}
        for name, value in {**own, **owner._buffers}.items():
            yield _Attribute(owner, path, name, value, _mark(value))


def _mark(value: object) -> object:
    """Return what differs if an attribute has changed. The attribute's value must be kept, or its id may return."""
    match value:
        case bool() | int() | float() | str() | None:
            return repr(value)
        case torch.Tensor():
            return id(value), value._version
        case list() | dict() | set() | tuple():
            return id(value), len(value)
        case _:
            return id(value)


def _assignment(module: torch.nn.Module, name: str) -> str | None:
    """Return the line outside of `__init__` that assigns an attribute; None if it is not found in the class."""
    for owner in type(module).__mro__:
        try:
            lines, first = inspect.getsourcelines(owner)
            file = inspect.getsourcefile(owner)
        except (OSError, TypeError):
            continue
        functions = ast.walk(ast.parse(textwrap.dedent("".join(lines))))
        for node in (part for function in functions for part in _assigning(function)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Attribute) and target.attr == name for target in targets):
                return quoted_line(file or "", first + node.lineno - 1, lines[node.lineno - 1])
    return None


def _assigning(function: ast.AST) -> Iterator[ast.Assign | ast.AugAssign | ast.AnnAssign]:
    if isinstance(function, ast.FunctionDef) and function.name != "__init__":
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                yield node


def _reaches(node: Node, outputs: set[Node]) -> bool:
    """Return whether a value is used for one of the outputs."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        if current in outputs:
            return True
        new = [user for user in current.users if user not in seen]
        seen.update(new)
        waiting += new
    return False


def _at(lines: Iterable[str]) -> str:
    """Return the lines in words, for the end of a clause."""
    return f" at {'; '.join(lines)}" if lines else ""
