"""Which operator calls can be used in a scheme, predicted from the cases of earlier operator atlases.

The evidence for a call is the most similar call of a case with the same operator: the same call, if possible, then one
with another shape, with other arguments, with another rank, with other dtypes. If no case has the operator, it is a
call of another overload, or an operator of the edge program of another case. A case on another architecture, of another
toolchain or in another scheme is evidence only where there is no other. The likeness is part of the forecast.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from qnnsweep.tasks.records.tables import Row

Usability = Literal["delegated", "wrong", "cpu", "refused", "unknown"]
USABILITIES: tuple[Usability, ...] = get_args(Usability)
"""From the best to the worst. `unknown`: no case of any atlas has the operator."""

Likeness = Literal[
    "same call",
    "another shape",
    "other arguments",
    "another rank",
    "other dtypes",
    "another overload",
    "part of another operator",
]
_LIKENESSES: tuple[Likeness, ...] = get_args(Likeness)

ATLAS_COLUMNS = (
    *("run_id", "scheme", "soc", "arch", "toolchain", "case", "state", "why"),
    *("calls", "targets", "cpu_targets", "worst_operator"),
)
"""The columns of the table `atlas` that a forecast reads."""

_OF_OVERLOADS = frozenset(
    ("", "copy", "default", "decimals", "dim", "dims", "input", "int", "mode", "scalar", "sections", "tensor")
)
"""Words of operators' names, in lower case, that do not say what an operator computes."""
_TENSOR = re.compile(r"(constant )?(\w+)\[([\d, ]*)\]")
USABILITY_OF_STATE: Mapping[str, Usability] = {
    "exact": "delegated",
    "delegated": "delegated",
    "wrong": "wrong",
    "cpu": "cpu",
    "refused": "refused",
    "aborted": "refused",
}
"""By the states of cases that say something about the compiler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """A scheme, the number of a Hexagon architecture, and a toolchain's name."""

    scheme: str
    arch: int
    toolchain: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A call of a case, and what was measured."""

    usability: Usability
    call: str
    case: str
    why: str | None
    where: Where
    soc: str
    alone: bool
    """Whether the case has no other call that could be the reason for its state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallForecast:
    """Whether an operator call can be used, and the evidence. `likeness`, `evidence`: None if it is unknown."""

    call: str
    usability: Usability
    likeness: Likeness | None = None
    evidence: Evidence | None = None


def operator_name(call: str) -> str:
    """Return the operator of a call, such as `aten.add.Tensor`."""
    return call.partition("(")[0]


class AtlasEvidence:
    """The evidence of all rows of the table `atlas`. A later row of the same case and place replaces an earlier one."""

    def __init__(self, rows: Iterable[Row]) -> None:
        latest = {(row["case"], place_of(row)): row for row in sorted(rows, key=lambda row: row["run_id"])}
        self._by_operator: dict[str, list[Evidence]] = defaultdict(list)
        self._by_base: dict[str, list[Evidence]] = defaultdict(list)
        self._by_part: dict[str, list[Evidence]] = defaultdict(list)
        for row in latest.values():
            for evidence in _evidence(row):
                self._by_operator[operator_name(evidence.call)].append(evidence)
                self._by_base[_base(operator_name(evidence.call))].append(evidence)
            for part in _parts(row):
                self._by_part[_base(part.call)].append(part)

    def forecast(self, call: str, place: Where) -> CallForecast:
        """Return the forecast of a call."""
        operator, base = operator_name(call), _base(operator_name(call))
        known = self._by_operator.get(operator) or self._by_base.get(base) or self._by_part.get(base, [])
        near = [(_distance(call, place, evidence), evidence) for evidence in known]
        if not near:
            return CallForecast(call=call, usability="unknown")
        least = min(distance for distance, _ in near)
        # Of equally similar calls, one that is delegated clears those that share a case with another reason.
        nearest = [evidence for distance, evidence in near if distance == least]
        clear = [evidence for evidence in nearest if evidence.alone or evidence.usability == "delegated"] or nearest
        evidence = max(clear, key=lambda item: (item.alone, USABILITIES.index(item.usability)))
        likeness = _likeness(call, evidence.call)
        if operator not in self._by_operator:
            likeness = "another overload" if base in self._by_base else "part of another operator"
        return CallForecast(call=call, usability=evidence.usability, likeness=likeness, evidence=evidence)


def worst(forecasts: Iterable[CallForecast]) -> Usability:
    """Return the usability of a program with these calls: that of the worst call, and unknown ones are ignored."""
    known = {forecast.usability for forecast in forecasts}
    for usability in reversed(USABILITIES[:-1]):
        if usability in known:
            return usability
    return "unknown"


def place_of(row: Row) -> Where:
    """Return where a row of the table `atlas` was measured."""
    return Where(scheme=row["scheme"], arch=row["arch"], toolchain=row["toolchain"])


def _evidence(row: Row) -> Iterator[Evidence]:
    usability = USABILITY_OF_STATE.get(row["state"])
    calls: Sequence[str] = row["calls"] or ()
    if usability is None or not calls:
        return
    blamed = _blamed(row, calls, usability)
    for call in calls:
        yield Evidence(
            usability=usability if call in blamed else "delegated",
            call=call,
            case=row["case"],
            why=row["why"] if call in blamed else None,
            where=place_of(row),
            soc=row["soc"],
            alone=len(blamed) <= 1,
        )


def _parts(row: Row) -> Iterator[Evidence]:
    """Yield the operators of a case's edge program, if they were compiled or left to the CPU."""
    usability = USABILITY_OF_STATE.get(row["state"])
    if usability not in ("delegated", "cpu"):
        return
    on_cpu = {_base(name) for name in row["cpu_targets"] or ()}
    for target in row["targets"] or ():
        is_on_cpu = _base(target) in on_cpu
        yield Evidence(
            usability="cpu" if is_on_cpu else "delegated",
            call=target,
            case=row["case"],
            why=row["why"] if is_on_cpu else None,
            where=place_of(row),
            soc=row["soc"],
            alone=True,
        )


def _blamed(row: Row, calls: Sequence[str], usability: Usability) -> Sequence[str]:
    """Return the calls that may be the reason for a state: those that the state's operators descend from, or all."""
    if usability == "delegated":
        return ()
    if usability == "refused":
        return calls
    names = row["cpu_targets"] if usability == "cpu" else (row["worst_operator"],)
    wanted = {_base(name) for name in names or () if name}
    return [call for call in calls if _base(operator_name(call)) in wanted] or calls


def _base(name: str) -> str:
    """Return the common part of the names of an operator in the exported and in the edge program."""
    words = name.removeprefix("aten").replace(".", "_").strip("_").split("_")
    return "_".join(word for word in words if word.lower() not in _OF_OVERLOADS)


def _distance(call: str, place: Where, evidence: Evidence) -> tuple[float, ...]:
    """Return how far a measured call is from a call, as numbers of which the first counts most; 0 means equal."""
    other = evidence.where
    likeness = _LIKENESSES.index(_likeness(call, evidence.call))
    return (
        other.scheme != place.scheme,
        abs(other.arch - place.arch),
        other.toolchain != place.toolchain,
        likeness,
        _differing_arguments(call, evidence.call),
        _shape_distance(call, evidence.call),
    )


def _likeness(call: str, other: str) -> Likeness:
    if call == other:
        return "same call"
    if _TENSOR.sub(_without_sizes, call) == _TENSOR.sub(_without_sizes, other):
        return "another shape"
    if [_without_sizes(match) for match in _TENSOR.finditer(call)] == [
        _without_sizes(match) for match in _TENSOR.finditer(other)
    ]:
        return "other arguments"
    dtypes = ([match[1], match[2]] for match in _TENSOR.finditer(call))
    return "another rank" if [*dtypes] == [[m[1], m[2]] for m in _TENSOR.finditer(other)] else "other dtypes"


def _without_sizes(tensor: re.Match[str]) -> str:
    return f"{tensor[1] or ''}{tensor[2]}^{len(_sizes(tensor))}"


def _sizes(tensor: re.Match[str]) -> list[int]:
    return [int(size) for size in tensor[3].split(",") if size.strip()]


def _differing_arguments(call: str, other: str) -> int:
    """Return how many of the arguments that are no tensors differ."""
    ours, theirs = (_TENSOR.sub("", text).split(", ") for text in (call, other))
    return sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))


def _shape_distance(call: str, other: str) -> float:
    """Return the sum of the binary logarithms of the ratios of the sizes, over the dimensions of all tensors."""
    pairs = zip(_TENSOR.finditer(call), _TENSOR.finditer(other), strict=False)
    return sum(
        abs(math.log2(max(a, 1) / max(b, 1)))
        for ours, theirs in pairs
        for a, b in zip(_sizes(ours), _sizes(theirs), strict=False)
    )
