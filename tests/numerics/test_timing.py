"""The times of a program's own log, one entry per event, in the unit in which the event was counted.

`digits_qnn_profile` is digits_cnn 8a8w on the HTP simulator with profile level 2, two samples twice; `digits_xnnpack`
is the same model in fp32 through XNNPACK, three samples; `kernels_cpu` portable kernels, two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.timing import EventTimes, Spread, counted_in, event_times, spread, warm_up_runs
from qnnsweep.tasks.records.logs import TimedEvent
from qnnsweep.tasks.records.vocabulary import EVENT_KINDS
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(TimedEvent):
    start: int = 1_000
    run: int = 1
    run_name: str | None = "Execute"
    chain_index: int = 0
    instruction_id: int = 0
    delegate_identifier: str | None = None
    metadata: bytes = b""


def log(name: str) -> tuple[EventTimes, ...]:
    backend = backend_of("qnn" if "qnn" in name else "xnnpack")
    return event_times(read_etdump((DATA / name).read_bytes()).events, delegate_event=backend.delegate_event)


def test_an_event_has_one_entry_over_all_its_runs_in_microseconds() -> None:
    durations_us = (10, 20, 30, 40, 100)
    events = [
        Event(name="OPERATOR_CALL", end=1_000 + 1_000 * us, instruction_id=3, run=run)
        for run, us in enumerate(durations_us)
    ]
    assert event_times(events) == (
        EventTimes(
            event_block="Execute",
            name="OPERATOR_CALL #3",
            node=None,
            kind="operator_call",
            instruction=3,
            unit="us",
            raw=(10.0, 20.0, 30.0, 40.0, 100.0),
            runs=(0, 1, 2, 3, 4),
        ),
    )


def test_a_distribution_interpolates_its_percentiles() -> None:
    assert spread((10.0, 20.0, 30.0, 40.0, 100.0)) == Spread(
        count=5, p10=14.0, p50=30.0, p90=76.0, mean=40.0, minimum=10.0, maximum=100.0
    )


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_percentiles_lie_between_minimum_and_maximum(raw: list[float]) -> None:
    times = spread(raw)
    assert times.minimum <= times.p10 <= times.p50 <= times.p90 <= times.maximum
    assert times.minimum <= times.mean * (1 + 1e-12)


def test_instructions_have_separate_entries_in_the_order_of_first_appearance() -> None:
    events = [Event(name="DELEGATE_CALL", end=2_000, instruction_id=number) for number in (7, 0, 7)]
    assert [(times.name, times.instruction, len(times.raw), times.kind) for times in event_times(events)] == [
        ("DELEGATE_CALL #7", 7, 2, "delegate_call"),
        ("DELEGATE_CALL #0", 0, 1, "delegate_call"),
    ]


def test_an_event_of_the_whole_program_belongs_to_no_instruction() -> None:
    (times,) = event_times([Event(name="Method::execute", end=2_000, chain_index=-1)])
    assert (times.name, times.instruction, times.kind, times.raw) == ("Method::execute", None, "program", (1.0,))


def test_events_without_a_name_and_excluded_runs_are_left_out() -> None:
    events = [Event(name="native_call_relu.out", end=2_000, run=run) for run in (1, 2, 3)]
    (times,) = event_times([*events, Event(name=None, end=9)], without={2})
    assert (times.kind, times.runs) == ("kernel", (1, 3))


def test_an_event_of_the_runtime_that_was_not_timed_is_left_out() -> None:
    events = [
        Event(name="DELEGATE_CALL", start=0, end=0),
        Event(name="Method::execute", chain_index=-1, start=0, end=0),
    ]
    assert event_times(events) == ()


def test_an_event_of_qnn_keeps_the_unit_in_its_name() -> None:
    events = [event for event in log("digits_qnn_profile.etdump") if event.kind in ("operator", "accelerator")]
    assert [(event.name, event.node, event.kind, event.unit, event.raw[1]) for event in events] == [
        ("Number of HVX threads used (count) #0", None, "accelerator", "count", 0),
        ("Num times yield occured (count) #0", None, "accelerator", "count", 0),
        ("Time for initial VTCM acquire (us) #0", None, "accelerator", "us", 1813),
        ("Time for HVX + HMX power on and acquire (us) #0", None, "accelerator", "us", 21690),
        ("Accelerator (execute) time (cycles) #0", None, "accelerator", "cycles", 324316),
        *(
            (f"{node}{sign}OpId_{number} (cycles)", node, "operator", "cycles", cycles)
            for node, sign, number, cycles in (
                ("Input", " ", 2, 170),
                ("quantized_decomposed_quantize_per_tensor_default", ":", 16, 18400),
                ("aten_permute_copy_default", ":", 18, 4060),
                ("aten_convolution_default", ":", 26, 0),
                ("aten_relu_default", ":", 29, 40567),
                ("aten_convolution_default_1", ":", 37, 0),
                ("aten_relu_default_1", ":", 40, 111443),
                ("aten_max_pool2d_with_indices_default", ":", 44, 3634),
                ("aten_permute_copy_default_1", ":", 47, 7810),
                ("aten_view_copy_default", ":", 48, 10628),
                ("aten_linear_default", ":", 53, 123301),
                ("quantized_decomposed_dequantize_per_tensor_default", ":", 55, 0),
                ("Output", " ", 3, 4303),
            )
        ),
        ("Accelerator (execute) time (us) #0", None, "accelerator", "us", 7317),
        ("QNN (execute) time (us) #0", None, "accelerator", "us", 7407),
    ]


def test_the_cycles_of_the_operators_add_up_to_the_accelerator_s() -> None:
    events = log("digits_qnn_profile.etdump")
    (total,) = (event.raw for event in events if event.name.startswith("Accelerator (execute) time (cycles)"))
    operators = [event.raw for event in events if event.kind == "operator"]
    assert tuple(map(sum, zip(*operators, strict=True))) == total


def test_events_of_xnnpack_are_in_microseconds_of_the_runtime_s_clock() -> None:
    events = [event for event in log("digits_xnnpack.etdump") if event.kind in ("operator", "delegate_call")]
    assert [(event.name, event.node, event.unit) for event in events] == [
        *(
            (name, name, "us")
            for name in (
                "Transpose (ND, X32) #1",
                "Convolution (NHWC, F32) IGEMM #1",
                "Convolution (NHWC, F32) IGEMM #2",
                "Max Pooling (NHWC, F32) #1",
                "Transpose (ND, X32) #2",
                "Static Reshape (NC) #1",
                "Fully Connected (NC, F32) GEMM #1",
            )
        ),
        ("DELEGATE_CALL #0", None, "us"),
    ]
    *inside, call = (event.raw for event in events)
    assert all(0 < sum(parts) <= whole for *parts, whole in zip(*inside, call, strict=True))


def test_an_event_outside_its_delegate_s_call_without_a_named_unit_is_in_ticks() -> None:
    call = Event(name="DELEGATE_CALL", start=1_000, end=2_000)
    inside = Event(name=None, delegate_identifier="7", start=0, end=900)
    assert [(times.name, times.unit, times.raw) for times in event_times([inside, call])] == [
        ("7", "ticks", (900.0,)),
        ("DELEGATE_CALL #0", "us", (1.0,)),
    ]


def test_a_log_of_kernels_has_two_events_per_instruction_and_those_of_the_program() -> None:
    events = log("kernels_cpu.etdump")
    assert {event.kind for event in events} == {"program", "kernel", "operator_call"} <= set(EVENT_KINDS)
    assert [(event.name, event.event_block, len(event.raw)) for event in events if event.kind != "kernel"] == [
        ("Method::init", "Default", 1),
        ("Program::load_method", "Default", 1),
        *((f"OPERATOR_CALL #{number}", "Execute", 2) for number in range(6)),
        ("Method::execute", "Execute", 2),
    ]


USERS = {
    "conv": ("relu",), "relu": ("split",), "split": ("left", "right"), "left": ("add",), "right": ("add", "dequantize"),
    "add": (), "dequantize": ("output",), "loop": ("loop",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "counts", "where"),
    [
        ("conv", {"relu": 5.0}, ("relu",)),
        ("conv", {"add": 5.0}, ("add", "output")),
        ("split", {"left": 1.0, "add": 5.0}, ("left", "add", "output")),
        ("dequantize", {}, ("output",)),
        ("loop", {}, ()),
        ("elsewhere", {}, ()),
    ],
)
def test_an_operator_without_cycles_is_counted_in_its_nearest_users_with_cycles(
    node: str, counts: Mapping[str, float], where: tuple[str, ...]
) -> None:
    assert counted_in(node, USERS, counts) == where


def test_warm_ups_precede_the_timed_inferences_of_each_sample() -> None:
    assert warm_up_runs([2, 3, 4, 5, 7, 8], samples=2, warm_up=1, iterations=2) == {2, 5}
    assert warm_up_runs([1, 2], samples=2, warm_up=0, iterations=1) == set()
    assert warm_up_runs([1, 2, 3], samples=2, warm_up=0, iterations=1) is None
