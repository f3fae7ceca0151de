"""How long each event of a program's own log took, over all its runs, in the unit in which it was counted.

Only the ticks of the runtime's clock are converted: cycles stay cycles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tasks.records import Spread
from tasks.records.vocabulary import EventKind

EXECUTION = "Method::execute"
"""What the runtime's log calls one inference."""

_RUNTIME_KINDS: dict[str, EventKind] = {"DELEGATE_CALL": "delegate_call", "OPERATOR_CALL": "operator_call"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """The clock by which a runtime times a program and its kernels: `ticks` of its log are one `unit`."""

    unit: str
    ticks: float


MICROSECONDS = Clock(unit="us", ticks=1000.0)
"""The clock of ExecuTorch's runtime on Linux and Android, which logs nanoseconds."""

DelegateEvent = Callable[[str], tuple[str | None, str] | None]
"""Maps the name of an event inside a delegate to its node and its unit; see `Backend.delegate_event`."""


class Timed(Protocol):
    """A timed event. Outside delegates `start` and `end` are ticks of the runtime's clock.

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


def spread(raw: Sequence[float]) -> Spread:
    p10, p50, p90 = (float(each) for each in np.percentile(raw, (10, 50, 90)))
    return Spread(
        count=len(raw), p10=p10, p50=p50, p90=p90, mean=float(np.mean(raw)), minimum=min(raw), maximum=max(raw)
    )


def measured(
    events: Iterable[Timed],
    *,
    without: Collection[int] = (),
    clock: Clock = MICROSECONDS,
    delegate_event: DelegateEvent = lambda _: None,
) -> tuple[Measured, ...]:
    """Return one entry per event, distinguished by block, name and instruction, in the order first logged.

    `without`: runs to leave out, warm-ups for example. An event that the delegate counts itself has the unit that
    `delegate_event` reads from its name. An event inside a delegate that lies within the delegate's call was timed by
    the runtime's `clock`, and any other counts `ticks` of an unknown length.
    """
    timed = [event for event in events if event.run not in without]
    calls = {_place(event): (event.start, event.end) for event in timed if event.name == "DELEGATE_CALL"}
    amounts_of: dict[tuple[str, str, str | None, EventKind, int | None, str], list[tuple[float, int]]] = defaultdict(
        list
    )
    for event in timed:
        if (entry := _timed(event, calls.get(_place(event)), clock, delegate_event)) is not None:
            name, node, kind, unit, amount = entry
            instruction = None if kind == "program" else event.instruction_id
            amounts_of[event.run_name or "", name, node, kind, instruction, unit].append((amount, event.run))
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
        for (block, name, node, kind, instruction, unit), amounts in amounts_of.items()
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


def _timed(
    event: Timed, call: tuple[int, int] | None, clock: Clock, delegate_event: DelegateEvent
) -> tuple[str, str | None, EventKind, str, float] | None:
    """Return the event's name, its node, its kind, its unit and its amount; None if the log has no name for it."""
    identifier, ticks = event.delegate_identifier, float(event.end - event.start)
    if identifier is not None:
        if (count := delegate_event(identifier)) is not None:
            node, unit = count
            return identifier, node, "accelerator" if node is None else "operator", unit, ticks
        if call is not None and call[0] <= event.start <= event.end <= call[1]:
            return identifier, identifier, "operator", clock.unit, ticks / clock.ticks
        return identifier, identifier, "operator", "ticks", ticks
    if event.name is None:
        return None
    if event.chain_index < 0:
        return event.name, None, "program", clock.unit, ticks / clock.ticks
    return event.name, None, _RUNTIME_KINDS.get(event.name, "kernel"), clock.unit, ticks / clock.ticks
