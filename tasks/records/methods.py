"""The names that the parts of a method have in its program."""

from dataclasses import replace

from qnnsweep.tasks.records.lowered import Operator


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
