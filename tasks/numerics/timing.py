"""The times of each event in a program's own log, over all runs of the program.

Ticks of the runtime's clock are converted to the clock's unit. Other units, such as cycles, are kept.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qnnsweep.tasks.numerics.clock import MICROSECONDS, Clock
from qnnsweep.tasks.records import Spread
from qnnsweep.tasks.records.logs import TimedEvent
from qnnsweep.tasks.records.vocabulary import EventKind

EXECUTION = "Method::execute"
"""The name of one inference in the runtime's log."""

_RUNTIME_KINDS: dict[str, EventKind] = {"DELEGATE_CALL": "delegate_call", "OPERATOR_CALL": "operator_call"}

DelegateEvent = Callable[[str], tuple[str | None, str] | None]
"""Maps the name of an event inside a delegate to the event's node and unit; see `Backend.delegate_event`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTimes:
    """One event over all its runs. `raw`: one amount per run, in `unit`. `runs`: the numbers of these runs."""

    event_block: str
    name: str  # the name in the log; events of the runtime itself also have their instruction's number
    node: str | None  # the delegate's name for an operator of its graph
    kind: EventKind
    instruction: int | None
    unit: str
    raw: tuple[float, ...]
    runs: tuple[int, ...]


def spread(raw: Sequence[float]) -> Spread:
    """Return the distribution of a list of at least one number, with linearly interpolated percentiles."""
    p10, p50, p90 = (float(percentile) for percentile in np.percentile(raw, (10, 50, 90)))
    return Spread(
        count=len(raw), p10=p10, p50=p50, p90=p90, mean=float(np.mean(raw)), minimum=min(raw), maximum=max(raw)
    )


def event_times(
    events: Iterable[TimedEvent],
    *,
    without: Collection[int] = (),
    clock: Clock = MICROSECONDS,
    delegate_event: DelegateEvent = lambda _: None,
) -> tuple[EventTimes, ...]:
    """Return one entry per event, in the order in which the events were first logged.

    Events are distinguished by block, name and instruction. `without`: runs to leave out, for example warm-ups.
    An event that the delegate itself counts has the unit that `delegate_event` reads from the event's name. Any other
    event inside a delegate was timed by the runtime's `clock` if it lies within the delegate's call. If it does not,
    its unit is `ticks` of an unknown length. An event of the runtime whose times are both 0 was not timed, and has no
    entry.
    """
    timed = [event for event in events if event.run not in without]
    calls = {_instruction_run(event): (event.start, event.end) for event in timed if event.name == "DELEGATE_CALL"}
    amounts_of: dict[tuple[str, str, str | None, EventKind, int | None, str], list[tuple[float, int]]] = defaultdict(
        list
    )
    for event in timed:
        if (entry := _timed(event, calls.get(_instruction_run(event)), clock, delegate_event)) is not None:
            name, node, kind, unit, amount = entry
            instruction = None if kind == "program" else event.instruction_id
            amounts_of[event.run_name or "", name, node, kind, instruction, unit].append((amount, event.run))
    return tuple(
        EventTimes(
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
    """Return the nodes that can include the work of an operator without own cycles: the nearest users that have cycles.

    The HTP compiler counts the work of fused operators in the last of them. If one node is returned, the work is
    counted in that node. If several nodes are returned, the counts do not show whether the work is counted in one or
    in each of them. The node `output` is the end of the graph.
    """
    counted: dict[str, None] = {}
    visited: set[str] = set()
    pending = list(users.get(node, ()))
    while pending:
        user = pending.pop(0)
        if user in visited:
            continue
        visited.add(user)
        if counts.get(user, 0.0) > 0 or user not in users:
            counted[user] = None
        else:
            pending.extend(users[user])
    return tuple(counted)


def warm_up_runs(executions: Sequence[int], *, samples: int, warm_up: int, iterations: int) -> set[int] | None:
    """Return the runs that are warm-ups. The runner runs each sample `warm_up` times and then `iterations` times.

    `executions`: the numbers of the runs that are inferences, in order. None if their count is not
    `samples * (warm_up + iterations)`.
    """
    per_sample = warm_up + iterations
    if len(executions) != samples * per_sample:
        return None
    return {run for position, run in enumerate(executions) if position % per_sample < warm_up}


def _instruction_run(event: TimedEvent) -> tuple[int, int, int]:
    return event.run, event.chain_index, event.instruction_id


def _timed(
    event: TimedEvent, call: tuple[int, int] | None, clock: Clock, delegate_event: DelegateEvent
) -> tuple[str, str | None, EventKind, str, float] | None:
    """Return the event's name, its node, its kind, its unit and its amount; None without a name or a time."""
    identifier, ticks = event.delegate_identifier, float(event.end - event.start)
    if identifier is not None:
        if (count := delegate_event(identifier)) is not None:
            node, unit = count
            return identifier, node, "accelerator" if node is None else "operator", unit, ticks
        if call is not None and call[0] <= event.start <= event.end <= call[1]:
            return identifier, identifier, "operator", clock.unit, ticks / clock.ticks
        return identifier, identifier, "operator", "ticks", ticks
    if event.name is None or event.start == event.end == 0:
        return None
    if event.chain_index < 0:
        return event.name, None, "program", clock.unit, ticks / clock.ticks
    return event.name, None, _RUNTIME_KINDS.get(event.name, "kernel"), clock.unit, ticks / clock.ticks
