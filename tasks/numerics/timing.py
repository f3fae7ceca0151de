"""How long each event of a program's own log took, over all its runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from tasks.findings import ProfiledEvent

NS_PER_US = 1000.0


class Timed(Protocol):
    """What is needed of a timed event. Outside delegates `start` and `end` are the runtime's nanoseconds.

    An event of the program as a whole has a `chain_index` of -1; its instruction means nothing.
    """

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


def profile(events: Iterable[Timed]) -> tuple[ProfiledEvent, ...]:
    """One row an event of the runtime, told apart by name and instruction, in the order first seen, in µs.

    Events from inside a delegate count what the delegate counts, which the log does not tell: they are left to the
    reader that knows the delegate.
    """
    durations: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    for event in events:
        if event.delegate_identifier is None and event.name is not None:
            instruction = None if event.chain_index < 0 else event.instruction_id
            durations[event.name, instruction].append((event.end - event.start) / NS_PER_US)
    return tuple(_row(name, instruction, taken) for (name, instruction), taken in durations.items())


def _row(name: str, instruction: int | None, taken: list[float]) -> ProfiledEvent:
    p10, p50, p90 = (float(each) for each in np.percentile(taken, (10, 50, 90)))
    return ProfiledEvent(
        name=name if instruction is None else f"{name} #{instruction}",
        debug_handle=None,
        delegate=name == "DELEGATE_CALL",
        unit="us",
        count=len(taken),
        p10=p10,
        p50=p50,
        p90=p90,
        mean=float(np.mean(taken)),
        minimum=min(taken),
        maximum=max(taken),
    )
