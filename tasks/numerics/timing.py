"""How long each event of a program's own log took, over all its runs, in the unit in which it was counted.

Nothing is converted but the runtime's nanoseconds: cycles stay cycles.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tasks.records.vocabulary import EventKind

NS_PER_US = 1000.0
EXECUTION = "Method::execute"
"""What the runtime's log calls one inference."""


# QNN names what it counts: `aten_relu_default:OpId_29 (cycles)`, `Output OpId_3 (cycles)`, `QNN (execute) time (us)`.
_COUNTED = re.compile(r"(?P<node>.+?)(?P<operator>[: ]OpId_\d+)? \((?P<unit>\w+)\)")
_RUNTIME_KINDS: dict[str, EventKind] = {"DELEGATE_CALL": "delegate_call", "OPERATOR_CALL": "operator_call"}


class Timed(Protocol):
    """What is needed of a timed event. Outside delegates `start` and `end` are the runtime's nanoseconds.

    An event of the program as a whole has a `chain_index` of -1; its instruction means nothing.
    """

    @property
    def run(self) -> int: ...
    @property
    def run_name(self) -> str | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def chain_index(self) -> int: ...
    @property
    def instruction_id(self) -> int: ...
    @property
    def delegate_identifier(self) -> str | None: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One event over all the runs it was in. `raw` counts `unit`, `runs` says in which of the file's runs."""

    event_block: str
    name: str
    """As logged; the runtime's own with their instruction."""
    node: str | None
    """What the delegate calls an operator of its graph."""
    kind: EventKind
    instruction: int | None
    unit: str
    raw: tuple[float, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The distribution of a list of numbers, percentiles interpolated linearly."""

    count: int
    p10: float
    p50: float
    p90: float
    mean: float
    minimum: float
    maximum: float


def spread(raw: Sequence[float]) -> Spread:
    p10, p50, p90 = (float(each) for each in np.percentile(raw, (10, 50, 90)))
    return Spread(
        count=len(raw), p10=p10, p50=p50, p90=p90, mean=float(np.mean(raw)), minimum=min(raw), maximum=max(raw)
    )


def measured(events: Iterable[Timed], *, without: Collection[int] = ()) -> tuple[Measured, ...]:
    """One entry an event, told apart by block, name and instruction, in the order first seen.

    `without`: runs to leave out, warm-ups for example. An event inside a delegate counts the unit that it names; one
    that names none and lies within its delegate's call was timed by the runtime's clock, and any other counts `ticks`
    that nobody explains.
    """
    found = [event for event in events if event.run not in without]
    calls = {_place(event): (event.start, event.end) for event in found if event.name == "DELEGATE_CALL"}
    taken: dict[tuple[str, str, str | None, EventKind, int | None, str], list[tuple[float, int]]] = defaultdict(list)
    for event in found:
        told = _told(event, calls.get(_place(event)))
        if told is not None:
            name, node, kind, unit = told
            instruction = None if kind == "program" else event.instruction_id
            amount = float(event.end - event.start) / (NS_PER_US if unit == "us" and not _names_unit(event) else 1.0)
            taken[event.run_name or "", name, node, kind, instruction, unit].append((amount, event.run))
    return tuple(
        Measured(
            event_block=block,
            name=name if instruction is None or kind == "operator" else f"{name} #{instruction}",
            node=node,
            kind=kind,
            instruction=instruction,
            unit=unit,
            raw=tuple(amount for amount, _ in amounts),
            runs=tuple(run for _, run in amounts),
        )
        for (block, name, node, kind, instruction, unit), amounts in taken.items()
    )


def counted_in(node: str, users: Mapping[str, Sequence[str]], counts: Mapping[str, float]) -> tuple[str, ...]:
    """Where the work of an operator without cycles of its own is counted: the nearest nodes downstream that have some.

    The HTP compiler books fused operators on the last of them, the one that the others feed. One node is where the
    work went; several mean that it is in one or in each of them, which no count tells. `output` is the graph's end.
    """
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = list(users.get(node, ()))
    while waiting:
        user = waiting.pop(0)
        if user in seen:
            continue
        seen.add(user)
        if counts.get(user, 0.0) > 0 or user not in users:
            found[user] = None
        else:
            waiting.extend(users[user])
    return tuple(found)


def warm_up_runs(executions: Sequence[int], *, samples: int, warm_up: int, iterations: int) -> set[int] | None:
    """Which runs of a log are warm-ups, of a runner that runs each sample `warm_up` and then `iterations` times.

    None if there are more or fewer executions than that.
    """
    turns = warm_up + iterations
    if len(executions) != samples * turns:
        return None
    return {run for position, run in enumerate(executions) if position % turns < warm_up}


def _place(event: Timed) -> tuple[int, int, int]:
    return event.run, event.chain_index, event.instruction_id


def _names_unit(event: Timed) -> bool:
    return event.delegate_identifier is not None and _COUNTED.fullmatch(event.delegate_identifier) is not None


def _told(event: Timed, call: tuple[int, int] | None) -> tuple[str, str | None, EventKind, str] | None:
    """An event's name, its node, its kind and its unit; None for what the log gives no name."""
    identifier = event.delegate_identifier
    if identifier is not None:
        if counted := _COUNTED.fullmatch(identifier):
            kind: EventKind = "operator" if counted["operator"] else "accelerator"
            return identifier, counted["node"] if counted["operator"] else None, kind, counted["unit"]
        by_the_clock = call is not None and call[0] <= event.start <= event.end <= call[1]
        return identifier, identifier, "operator", "us" if by_the_clock else "ticks"
    if event.name is None:
        return None
    if event.chain_index < 0:
        return event.name, None, "program", "us"
    return event.name, None, _RUNTIME_KINDS.get(event.name, "kernel"), "us"
