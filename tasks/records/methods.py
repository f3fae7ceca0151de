"""The records of programs with several methods. The record of a stage has one record of its base class per method.

A program with one method has the base class's record alone, so nothing changes for it. Otherwise the record has the
fields of the first method, and those of the other methods in `further`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.records.launches import Capture
from qnnsweep.tasks.records.stages import ExportedModel, LoweredProgram, Operator, Quantization, QuantizedModel

R = TypeVar("R", ExportedModel, QuantizedModel, LoweredProgram, Capture)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedMethods(ExportedModel):
    further: tuple[ExportedModel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedMethods(QuantizedModel):
    further: tuple[QuantizedModel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredMethods(LoweredProgram):
    further: tuple[LoweredProgram, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureMethods(Capture):
    further: tuple[Capture, ...]


_OF_SEVERAL: dict[type[Any], type[Any]] = {
    ExportedModel: ExportedMethods,
    QuantizedModel: QuantizedMethods,
    LoweredProgram: LoweredMethods,
    Capture: CaptureMethods,
}


def methods_of(record: R) -> tuple[R, ...]:
    """Return the record of every method, in the order of the model's configuration."""
    for base, several in _OF_SEVERAL.items():
        if isinstance(record, several):
            return (base(**_values(record, base)), *getattr(record, "further"))  # noqa: B009 - no base class has it
    return (record,)


def of_methods(records: Iterable[R]) -> R:
    """Return one record for the records of all methods."""
    first, *further = records
    if not further:
        return first
    kind = type(first)
    return _OF_SEVERAL[kind](**_values(first, kind), further=tuple(further))


def for_each_method(record: R, change: Callable[[R], R]) -> R:
    """Return the record with `change` applied to the record of every method."""
    return of_methods(map(change, methods_of(record)))


def results_of(exported: ExportedModel) -> tuple[int, ...]:
    """Return the positions of a method's outputs that are no states; of all outputs if every output is a state."""
    links = exported.driven.links if exported.driven else ()
    states = {link.output for link in links if link.method == (exported.method or METHOD)}
    outputs = range(len(exported.outputs))
    return tuple(output for output in outputs if output not in states) or tuple(outputs)


def output_grid(lowered: LoweredProgram, output: int) -> Quantization | None:
    """Return the grid of an output of a method with states; None if it has none."""
    index = lowered.output_operators[output] if lowered.output_operators else None
    return None if index is None else lowered.operators[index].quantization


def in_method(name: str, method: str | None) -> str:
    """Return the name that a part of a method has in the program: `<method>/<name>`."""
    return name if method is None else f"{method}/{name}"


def named_operator(operator: Operator, method: str | None, first: int) -> Operator:
    """Return an operator with the name and the number that it has in the program.

    `first`: the number of operators of the methods before this one.
    """
    return replace(
        operator,
        method=method,
        name=in_method(operator.name, method),
        index=operator.index + first,
        sources=tuple(source + first for source in operator.sources),
    )


def _values(record: object, kind: type[Any]) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(kind)}
