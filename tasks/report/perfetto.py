"""The trace of a cell's profile, to be opened in ui.perfetto.dev (Chrome's JSON trace events, times in µs).

Events have durations but no start times. Inferences are therefore placed end to end. The events inside an inference are
placed in the order of its instructions. Cycles are not times. If an operator was counted in cycles, the width of its
slice is the operator's share of the delegate's call, and the arguments of the slice contain the cycles.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from qnnsweep.tasks.numerics.timing import EXECUTION
from qnnsweep.tasks.records import ProfiledEvent

INFERENCES = 10
"""The maximum number of timed inferences per program in the trace. More would add megabytes but no information."""
_LOADING, _RUNTIME, _INSIDE = 1, 2, 3
_THREADS = {
    _LOADING: "loading (all begin at 0)",
    _RUNTIME: "runtime: inferences end to end, without the time between them",
    _INSIDE: "inside the delegate: widths are shares of the delegate's call; the arguments have the cycles",
}

Event = dict[str, Any]


def trace(title: str, profile: Sequence[ProfiledEvent]) -> dict[str, Any]:
    """Return the trace, with one process per profiled program. `title`: the name of the cell."""
    events: list[Event] = []
    counts: dict[str, str] = {}
    for process, program in enumerate(dict.fromkeys(event.program for event in profile), start=1):
        program_events = [event for event in profile if event.program == program]
        events.append(_named("process_name", process, 0, f"{title}: {program} program"))
        events += [_named("thread_name", process, thread, name) for thread, name in _THREADS.items()]
        events += [event | {"pid": process} for event in _program(program_events)]
        inferences = {inference for event in program_events for inference in event.inferences}
        counts[program] = f"{min(len(inferences), INFERENCES)} of {len(inferences)} inferences"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"cell": title, **counts}}


def _program(events: Sequence[ProfiledEvent]) -> Iterator[Event]:
    loading = [event for event in events if not event.inferences]
    for event in sorted(loading, key=lambda event: -max(event.raw)):
        yield (
            _slice(_LOADING, event.name, 0.0, max(event.raw), {})
            if event.unit == "us"
            else _instant(_LOADING, event.name, 0.0, {event.unit: max(event.raw)})
        )
    start = max((max(event.raw) for event in loading if event.unit == "us"), default=0.0)
    execution = next((event for event in events if event.name == EXECUTION), None)
    inferences = zip(execution.inferences, execution.samples, execution.raw, strict=True) if execution else ()
    for inference, sample, duration in islice(inferences, INFERENCES):
        yield _slice(_RUNTIME, EXECUTION, start, duration, {"inference": inference, "sample": sample})
        yield from _inference(events, inference, start)
        start += duration


def _inference(events: Sequence[ProfiledEvent], inference: int, start: float) -> Iterator[Event]:
    """Yield the events of one inference: calls of kernels and delegates, kernels, and operators inside delegates."""
    by_instruction: dict[int, list[tuple[ProfiledEvent, float]]] = defaultdict(list)
    for event in events:
        if event.instruction is not None and inference in event.inferences:
            by_instruction[event.instruction].append((event, event.raw[event.inferences.index(inference)]))
    for _, members in sorted(by_instruction.items()):
        outer = [
            (event, amount) for event, amount in members if event.kind in ("delegate_call", "operator_call", "kernel")
        ]
        inside = [(event, amount) for event, amount in members if event.kind == "operator"]
        accelerator = {event.name: amount for event, amount in members if event.kind == "accelerator"}
        # A kernel is within its call and begins at the same time: the longer event is first.
        for event, amount in sorted(outer, key=lambda pair: -pair[1]):
            call = accelerator | {"backend": event.backend}
            kernel = {"operators": [operator.name for operator in event.operators]}
            yield _slice(_RUNTIME, event.name, start, amount, call if event.kind == "delegate_call" else kernel)
        duration = max((amount for _, amount in outer), default=0.0)
        yield from _inside(inside, start, duration)
        start += duration


def _inside(operators: Sequence[tuple[ProfiledEvent, float]], start: float, duration: float) -> Iterator[Event]:
    """Yield the operators inside a delegate's call, end to end and in the delegate's order.

    The width of an operator that was not timed in µs is its share of `duration`, the duration of the call.
    """
    counted = sum(amount for event, amount in operators if event.unit != "us")
    for event, amount in operators:
        arguments = {event.unit: amount} if event.unit != "us" else {}
        arguments |= {"operators": [operator.name for operator in event.operators]} if event.operators else {}
        arguments |= {"counted in": list(event.counted_in)} if event.counted_in else {}
        width = amount if event.unit == "us" else duration * amount / counted if counted else 0.0
        name = event.node or event.name
        yield _slice(_INSIDE, name, start, width, arguments) if width else _instant(_INSIDE, name, start, arguments)
        start += width


def _slice(thread: int, name: str, start: float, duration: float, arguments: Event) -> Event:
    # A slice ends exactly where the next begins, to the nanosecond: readers of a trace treat an overlap as damage.
    duration = _ns(_ns(start + duration) - _ns(start))
    return {"ph": "X", "tid": thread, "name": name, "ts": _ns(start), "dur": duration, "args": arguments}


def _instant(thread: int, name: str, at: float, arguments: Event) -> Event:
    return {"ph": "i", "s": "t", "tid": thread, "name": name, "ts": _ns(at), "args": arguments}


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}


def _ns(us: float) -> float:
    """Round µs to nanoseconds, the resolution of the runtime's clock and of the trace's readers."""
    return round(us, 3)
