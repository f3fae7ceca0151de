"""The search of the smallest program that still shows an error, and of the nearest change that makes it right."""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.repro.case import Case
from qnnsweep.tasks.repro.program import described, small_program, terminals
from qnnsweep.tasks.repro.variant import CLAMPS, Variant, twins, variant_of

_DEEPEST = 3
"""The most operators between the operator and an operator that the program grows to."""
_RIGHT = 0.1
"""The twin is right if its error has at most this share of the error that was found, or is one step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A program that was tried, and its error. `failure`: why there is no error; None if the program ran."""

    description: str
    error: float | None
    failure: str | None = None


Attempt = Callable[[Variant, Variant | None], Trial]
"""Runs a program or, if there is one, its twin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """The program that shows the error, its twin if there is one, and everything that was tried."""

    base: Variant
    error: float
    """The error of the program. It is the error of the cell, unless no small program has exactly this error."""
    twin: Variant | None
    twin_error: float | None
    trials: tuple[Trial, ...]


def search(
    case: Case, soc: str, *, floats: bool, socs: Mapping[str, int], attempt: Attempt
) -> SearchResult | tuple[Trial, ...]:
    """Return the smallest program that shows the error, and its twin. If no program shows it, return the trials."""
    trials: list[Trial] = []
    known: set[tuple[frozenset[int], tuple[int, ...]]] = set()

    def tried(members: Collection[int], outputs: list[int]) -> tuple[Variant, float] | None:
        """Return the program and its error; None if it does not run, is right, or was tried before."""
        key = frozenset(members), tuple(outputs)
        if key in known:
            return None
        known.add(key)
        try:
            base = variant_of(case, small_program(case, members, outputs), soc, floats=floats)
        except EvidenceError as error:
            trials.append(Trial(description=described(case.operators, members), error=None, failure=str(error)))
            return None
        trials.append(attempt(base, None))
        error = trials[-1].error
        return None if error is None or error <= limit_of(case.error) else (base, error)

    best: tuple[Variant, float] | None = None
    for members, outputs in _growing(case):
        answer = tried(members, outputs)
        if answer is not None and (best is None or answer[1] == case.error):
            best = answer
        if best is not None and best[1] == case.error:
            break
    if best is None:
        return tuple(trials)
    base, error = best
    start = _whole(case, {case.operator.index, *case.spans})
    for member in reversed(base.program.members):
        fewer = set(base.program.members) - _with_elements(case, member)
        if len(fewer) == len(base.program.members) or not start <= fewer:
            continue
        smaller = tried(fewer, [output for output in base.program.outputs if output in fewer])
        if smaller is not None and smaller[1] == error:
            base = smaller[0]
    right = max(_RIGHT * error if math.isfinite(error) else 0.0, 1.0 if base.qparams else 0.0)
    for twin in twins(case, base, socs):
        trials.append(attempt(base, twin))
        of_twin = trials[-1].error
        if of_twin is not None and of_twin <= right:
            return SearchResult(base=base, error=error, twin=twin, twin_error=of_twin, trials=tuple(trials))
    return SearchResult(base=base, error=error, twin=None, twin_error=None, trials=tuple(trials))


def limit_of(error: float) -> float:
    """Return the largest error of a program that does not show an error."""
    return error / 2 if math.isfinite(error) else sys.float_info.max


def _growing(case: Case) -> Iterator[tuple[frozenset[int], list[int]]]:
    """Yield larger and larger programs around the operator: their members, and the members whose values are returned.

    The first is the operator with the operators that the compiler fused with it. A debug program returns every value,
    so each program is also tried with all values returned.
    """
    for members in _groups(case):
        ends = [case.operator.index, *(end for end in terminals(case, members) if end != case.operator.index)]
        others = (member for member in sorted(members) if case.operators[member].shape is not None)
        everything = [*ends, *(member for member in others if member not in ends)]
        yield members, ends
        yield members, everything


def _groups(case: Case) -> Iterator[frozenset[int]]:
    start = _whole(case, {case.operator.index, *case.spans})
    yield start
    clamps = [index for index in _readers(case, start) if case.graph.calls[index].target in CLAMPS]
    yield start.union(clamps)
    before, after = start, start
    for _ in range(_DEEPEST):
        after = _whole(case, after.union(_readers(case, after)))
        before = _whole(case, before.union(_producers(case, before)))
        yield after
        yield before
        yield before | after


def _whole(case: Case, members: Iterable[int]) -> frozenset[int]:
    """Return members and, for each tuple that one of them is or reads, the operator that returns it and its elements.

    A program can neither read nor return a tuple. Elements that nobody reads are left out.
    """
    return frozenset[int]().union(*(_with_elements(case, member) for member in members))


def _with_elements(case: Case, index: int) -> frozenset[int]:
    """Return an operator with the tuples that it is or reads, and with the elements of these tuples; see `_whole`."""
    operators, sources = case.operators, case.graph.sources
    tuples = {
        near for near in (index, *sources[index]) if operators[near].shape is None and not operators[near].constant
    }
    elements = {
        reader for reader, read in enumerate(sources) if not tuples.isdisjoint(read) and not operators[reader].unused
    }
    return frozenset({index, *tuples, *elements})


def _readers(case: Case, members: Iterable[int]) -> list[int]:
    inside = set(members)
    return [index for index, sources in enumerate(case.graph.sources) if inside & set(sources) and _fits(case, index)]


def _producers(case: Case, members: Iterable[int]) -> list[int]:
    return [source for index in members for source in case.graph.sources[index] if _fits(case, source)]


def _fits(case: Case, index: int) -> bool:
    """Return whether the compiler can fuse an operator with the case's: both are in the same delegated subgraph."""
    operator = case.operators[index]
    return not operator.constant and operator.subgraph is not None and operator.subgraph == case.operator.subgraph
