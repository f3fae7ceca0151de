"""A cell's profile as a trace that ui.perfetto.dev opens (Chrome's JSON trace events, times in µs).

The tables hold how long each event took, not when it began: inferences are laid end to end, and what is inside one in
the order of its instructions. Cycles have no time: an operator that was counted in them is as wide as its share of its
delegate's call, and its cycles are in its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.numerics.timing import EXECUTION
from tasks.records import ProfiledEvent

INFERENCES = 10
"""How many of a program's timed inferences are in the trace: more would be megabytes and tell no more."""
_LOADING, _RUNTIME, _INSIDE = 1, 2, 3
_THREADS = {
    _LOADING: "loading (all begin at 0)",
    _RUNTIME: "runtime: inferences end to end, without the time between them",
    _INSIDE: "inside the delegate: widths are shares of its call, see cycles",
}

Event = dict[str, Any]


def trace(title: str, profile: Sequence[ProfiledEvent]) -> dict[str, Any]:
    """Every program that was profiled, each as a process of its own; `title` says of which cell."""
    events: list[Event] = []
    shown: dict[str, str] = {}
    for process, program in enumerate(dict.fromkeys(event.program for event in profile), start=1):
        told = [event for event in profile if event.program == program]
        events.append(_named("process_name", process, 0, f"{title}: {program} program"))
        events += [_named("thread_name", process, thread, name) for thread, name in _THREADS.items()]
        events += [event | {"pid": process} for event in _program(told)]
        inferences = {inference for event in told for inference in event.inferences}
        shown[program] = f"{min(len(inferences), INFERENCES)} of {len(inferences)} inferences"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"cell": title, **shown}}


def _program(events: Sequence[ProfiledEvent]) -> Iterator[Event]:
    loading = [event for event in events if not event.inferences]
    for event in sorted(loading, key=lambda each: -max(each.raw)):
        yield (
            _slice(_LOADING, event.name, 0.0, max(event.raw), {})
            if event.unit == "us"
            else _instant(_LOADING, event.name, 0.0, {event.unit: max(event.raw)})
        )
    start = max((max(event.raw) for event in loading if event.unit == "us"), default=0.0)
    whole = next((event for event in events if event.name == EXECUTION), None)
    for inference, sample, took in zip(*_turns(whole), strict=True) if whole else ():
        yield _slice(_RUNTIME, EXECUTION, start, took, {"inference": inference, "sample": sample})
        yield from _inference(events, inference, start)
        start += took


def _turns(whole: ProfiledEvent) -> tuple[Sequence[int], Sequence[int], Sequence[float]]:
    return whole.inferences[:INFERENCES], whole.samples[:INFERENCES], whole.raw[:INFERENCES]


def _inference(events: Sequence[ProfiledEvent], inference: int, start: float) -> Iterator[Event]:
    """What one inference consisted of: kernels with what it took to call them, and delegates with what is in them."""
    taken = [(event, _in(event, inference)) for event in events]
    present = [(event, amount) for event, amount in taken if amount is not None and event.instruction is not None]
    for instruction in sorted({event.instruction for event, _ in present if event.instruction is not None}):
        own = [(event, amount) for event, amount in present if event.instruction == instruction]
        outer = [(event, amount) for event, amount in own if event.kind in ("delegate_call", "operator_call", "kernel")]
        inside = [(event, amount) for event, amount in own if event.kind == "operator"]
        told = {event.name: amount for event, amount in own if event.kind == "accelerator"}
        # A kernel lies within its call: the longer one first, at the same time.
        for event, amount in sorted(outer, key=lambda each: -each[1]):
            operators = {"operators": [each.name for each in event.operators]} if event.kind != "delegate_call" else {}
            extra = told | {"backend": event.backend} if event.kind == "delegate_call" else operators
            yield _slice(_RUNTIME, event.name, start, amount, extra)
        took = max((amount for _, amount in outer), default=0.0)
        yield from _inside(inside, start, took)
        start += took


def _inside(operators: Sequence[tuple[ProfiledEvent, float]], start: float, took: float) -> Iterator[Event]:
    """Operators in the delegate's own order. What it counted in no time is as wide as its share of the call."""
    counted = sum(amount for event, amount in operators if event.unit != "us")
    for event, amount in operators:
        told = {event.unit: amount} if event.unit != "us" else {}
        told |= {"operators": [each.name for each in event.operators]} if event.operators else {}
        told |= {"counted in": list(event.counted_in)} if event.counted_in else {}
        width = amount if event.unit == "us" else took * amount / counted if counted else 0.0
        name = event.node or event.name
        yield _slice(_INSIDE, name, start, width, told) if width else _instant(_INSIDE, name, start, told)
        start += width


def _in(event: ProfiledEvent, inference: int) -> float | None:
    return event.raw[event.inferences.index(inference)] if inference in event.inferences else None


def _slice(thread: int, name: str, start: float, took: float, told: Event) -> Event:
    # Where one ends the next begins, to the nanosecond: a reader takes an overlap for a damaged trace.
    took = _ns(_ns(start + took) - _ns(start))
    return {"ph": "X", "tid": thread, "name": name, "ts": _ns(start), "dur": took, "args": told}


def _instant(thread: int, name: str, at: float, told: Event) -> Event:
    return {"ph": "i", "s": "t", "tid": thread, "name": name, "ts": _ns(at), "args": told}


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}


def _ns(us: float) -> float:
    """µs to the nanosecond, which is what the runtime's clock and the trace's reader count."""
    return round(us, 3)
