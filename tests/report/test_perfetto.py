"""Tests the trace of a cell's profile: only durations in µs become times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.records import ProfiledEvent
from qnnsweep.tasks.report.perfetto import INFERENCES, trace
from tests.sample_records import CONV, VIEW

LOADED = ProfiledEvent(
    program="profile", same_outputs=True, event_block="Default", name="Program::load_method", kind="program", node=None,
    instruction=None, unit="us", raw=(50.0,), inferences=(), samples=(), debug_handles=(), operators=(), backend=None,
    subgraph=None, counted_in=(),
)  # fmt: skip
EXECUTED = replace(
    LOADED, event_block="Execute", name="Method::execute", raw=(10.0, 20.0), inferences=(0, 1), samples=(0, 1)
)
CALL = replace(
    EXECUTED, name="DELEGATE_CALL #0", kind="delegate_call", instruction=0, raw=(8.0, 16.0), backend="QnnBackend",
    subgraph=0,
)  # fmt: skip
CYCLES = replace(
    CALL, name="relu:OpId_29 (cycles)", kind="operator", node="relu", unit="cycles", raw=(30.0, 40.0), operators=(CONV,)
)
FUSED = replace(CYCLES, name="conv:OpId_26 (cycles)", node="conv", raw=(0.0, 0.0), counted_in=("relu",), operators=())
OUTPUT = replace(CYCLES, name="Output OpId_3 (cycles)", node="Output", raw=(10.0, 40.0), operators=())
TOTAL = replace(
    CALL, name="Accelerator (execute) time (cycles) #0", kind="accelerator", unit="cycles", raw=(40.0, 80.0)
)
KERNEL_CALL = replace(
    EXECUTED, name="OPERATOR_CALL #1", kind="operator_call", instruction=1, raw=(1.0, 2.0), operators=(VIEW,)
)
KERNEL = replace(KERNEL_CALL, name="native_call_view.out #1", kind="kernel", raw=(0.5, 1.5))
PROFILE = (LOADED, EXECUTED, TOTAL, FUSED, CYCLES, OUTPUT, CALL, KERNEL, KERNEL_CALL)


def events(profile: tuple[ProfiledEvent, ...]) -> list[dict[str, Any]]:
    """Return the trace's events without the names of processes and threads."""
    return [event for event in trace("a cell", profile)["traceEvents"] if event["ph"] != "M"]


def slice_of(thread: int, name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "tid": thread, "name": name, "ts": start, "dur": duration, "args": arguments, "pid": 1}


def test_inferences_are_end_to_end_with_calls_and_operators_in_order() -> None:
    mark = {"ph": "i", "s": "t", "tid": 3, "name": "conv", "pid": 1, "args": {"cycles": 0.0, "counted in": ["relu"]}}
    total = "Accelerator (execute) time (cycles) #0"
    assert events(PROFILE) == [
        slice_of(1, "Program::load_method", 0.0, 50.0),
        slice_of(2, "Method::execute", 50.0, 10.0, inference=0, sample=0),
        slice_of(2, "DELEGATE_CALL #0", 50.0, 8.0, backend="QnnBackend", **{total: 40.0}),
        mark | {"ts": 50.0},
        slice_of(3, "relu", 50.0, 6.0, cycles=30.0, operators=["conv"]),
        slice_of(3, "Output", 56.0, 2.0, cycles=10.0),
        slice_of(2, "OPERATOR_CALL #1", 58.0, 1.0, operators=["view"]),
        slice_of(2, "native_call_view.out #1", 58.0, 0.5, operators=["view"]),
        slice_of(2, "Method::execute", 60.0, 20.0, inference=1, sample=1),
        slice_of(2, "DELEGATE_CALL #0", 60.0, 16.0, backend="QnnBackend", **{total: 80.0}),
        mark | {"ts": 60.0},
        slice_of(3, "relu", 60.0, 8.0, cycles=40.0, operators=["conv"]),
        slice_of(3, "Output", 68.0, 8.0, cycles=40.0),
        slice_of(2, "OPERATOR_CALL #1", 76.0, 2.0, operators=["view"]),
        slice_of(2, "native_call_view.out #1", 76.0, 1.5, operators=["view"]),
    ]


def test_an_operator_timed_in_microseconds_is_as_wide_as_its_duration() -> None:
    timed = replace(CYCLES, unit="us", raw=(3.0, 5.0), operators=())
    assert [event for event in events((EXECUTED, CALL, timed)) if event["tid"] == 3] == [
        slice_of(3, "relu", 0.0, 3.0),
        slice_of(3, "relu", 10.0, 5.0),
    ]


def test_every_program_is_a_process_with_named_threads() -> None:
    result = trace("a cell", (replace(EXECUTED, program="shipping"), *PROFILE))
    named = [
        (event["pid"], event["tid"], event["args"]["name"]) for event in result["traceEvents"] if event["ph"] == "M"
    ]
    threads = (
        (1, "loading (all begin at 0)"),
        (2, "runtime: inferences end to end, without the time between them"),
        (3, "inside the delegate: widths are shares of the delegate's call; the arguments have the cycles"),
    )
    assert named == [
        (1, 0, "a cell: shipping program"), *((1, *thread) for thread in threads),
        (2, 0, "a cell: profile program"), *((2, *thread) for thread in threads),
    ]  # fmt: skip
    assert result["otherData"] == {
        "cell": "a cell", "shipping": "2 of 2 inferences", "profile": "2 of 2 inferences",
    }  # fmt: skip
    assert result["displayTimeUnit"] == "ms"


def test_a_long_profile_is_limited_to_its_first_inferences_with_a_remark() -> None:
    many = tuple(range(INFERENCES + 30))
    result = trace("a cell", (replace(EXECUTED, raw=(1.0,) * len(many), inferences=many, samples=many),))
    assert len([event for event in result["traceEvents"] if event["name"] == "Method::execute"]) == INFERENCES
    assert result["otherData"]["profile"] == f"{INFERENCES} of {len(many)} inferences"


def test_an_empty_profile_is_an_empty_trace() -> None:
    assert trace("a cell", ()) == {"traceEvents": [], "displayTimeUnit": "ms", "otherData": {"cell": "a cell"}}


@given(st.lists(st.floats(min_value=0.001, max_value=9e6), min_size=1, max_size=6), st.floats(1.0, 9e6))
def test_slices_of_a_thread_lie_beside_or_within_each_other(cycles: list[float], duration: float) -> None:
    operators = [replace(CYCLES, node=f"n{number}", raw=(count, count)) for number, count in enumerate(cycles)]
    call = replace(CALL, raw=(duration, duration / 3))
    slices = [
        event
        for event in events((replace(EXECUTED, raw=(duration, duration / 3)), call, *operators))
        if event["ph"] == "X"
    ]
    for thread in (2, 3):
        spans = [
            (round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"])))
            for event in slices
            if event["tid"] == thread
        ]
        ends: list[int] = []
        for start, end in spans:
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)
