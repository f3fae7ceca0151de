"""The operators that a word of a command line means: an operator's name, or the path of a module of the model."""

from collections.abc import Iterable

from qnnsweep.conf.errors import RequestError, did_you_mean, printable

Known = Iterable[tuple[str, str | None]]
"""The names of operators, each with the path of its module."""


def operators_named(word: str, known: Known, choices: str = "") -> list[str]:
    """Return the operator of this name or else all operators of the module of this path, in their order.

    Raises RequestError, with the nearest names and the `choices` in words, if there is none.
    """
    listed = list(dict.fromkeys(known))
    if any(name == word for name, _ in listed):
        return [word]
    if inside := [name for name, module in listed if module == word]:
        return inside
    names = dict.fromkeys(part for pair in listed for part in pair if part)
    problem = f"no such operator; {did_you_mean(word, names)}{choices}`qnnsweep list operators` lists them"
    raise RequestError(problem, key="OPERATOR", value=printable(word))


def operator_named(word: str, known: Known) -> str:
    """Return the only one of `operators_named`. Raises RequestError if there are several."""
    found = operators_named(word, known)
    if len(found) > 1:
        problem = f"the module has several operators; write one of {', '.join(found)}"
        raise RequestError(problem, key="OPERATOR", value=printable(word))
    return found[0]
