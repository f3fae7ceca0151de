"""Times of a program's own log, one entry an event, in the unit in which it was counted.

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

from tasks.numerics.timing import Measured, Spread, counted_in, measured, spread, warm_up_runs
from tasks.records.vocabulary import EVENT_KINDS
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.readback.etdump import read_etdump

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, kw_only=True)
class Event:
    name: str | None
    end: int
    start: int = 1_000
    run: int = 1
    run_name: str | None = "Execute"
    chain_index: int = 0
    instruction_id: int = 0
    delegate_identifier: str | None = None


def log(name: str) -> tuple[Measured, ...]:
    kind = "qnn" if "qnn" in name else "xnnpack"
    return measured(read_etdump((DATA / name).read_bytes()).events, delegate_event=backend_of(kind).delegate_event)


def test_an_event_is_one_entry_over_all_its_runs_in_microseconds() -> None:
    taken_us = (10, 20, 30, 40, 100)
    events = [
        Event(name="OPERATOR_CALL", end=1_000 + 1_000 * us, instruction_id=3, run=run)
        for run, us in enumerate(taken_us)
    ]
    assert measured(events) == (
        Measured(
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


def test_a_spread_interpolates_its_percentiles() -> None:
    assert spread((10.0, 20.0, 30.0, 40.0, 100.0)) == Spread(
        count=5, p10=14.0, p50=30.0, p90=76.0, mean=40.0, minimum=10.0, maximum=100.0
    )


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_percentiles_lie_between_the_ends(raw: list[float]) -> None:
    found = spread(raw)
    assert found.minimum <= found.p10 <= found.p50 <= found.p90 <= found.maximum
    assert found.minimum <= found.mean * (1 + 1e-12)


def test_instructions_are_told_apart_and_stay_in_the_order_first_seen() -> None:
    events = [Event(name="DELEGATE_CALL", end=2_000, instruction_id=number) for number in (7, 0, 7)]
    assert [(each.name, each.instruction, len(each.raw), each.kind) for each in measured(events)] == [
        ("DELEGATE_CALL #7", 7, 2, "delegate_call"),
        ("DELEGATE_CALL #0", 0, 1, "delegate_call"),
    ]


def test_an_event_of_the_whole_program_belongs_to_no_instruction() -> None:
    (found,) = measured([Event(name="Method::execute", end=2_000, chain_index=-1)])
    assert (found.name, found.instruction, found.kind, found.raw) == ("Method::execute", None, "program", (1.0,))


def test_runs_to_be_left_out_and_events_without_a_name_are() -> None:
    events = [Event(name="native_call_relu.out", end=2_000, run=run) for run in (1, 2, 3)]
    (found,) = measured([*events, Event(name=None, end=9)], without={2})
    assert (found.kind, found.runs) == ("kernel", (1, 3))


def test_what_qnn_counts_keeps_the_unit_that_qnn_names() -> None:
    found = [each for each in log("digits_qnn_profile.etdump") if each.kind in ("operator", "accelerator")]
    assert [(each.name, each.node, each.kind, each.unit, each.raw[1]) for each in found] == [
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


def test_the_operators_cycles_are_all_of_the_accelerator_s() -> None:
    found = log("digits_qnn_profile.etdump")
    (total,) = (each.raw for each in found if each.name.startswith("Accelerator (execute) time (cycles)"))
    operators = [each.raw for each in found if each.kind == "operator"]
    assert tuple(map(sum, zip(*operators, strict=True))) == total


def test_what_xnnpack_times_by_the_runtime_s_clock_is_in_microseconds() -> None:
    found = [each for each in log("digits_xnnpack.etdump") if each.kind in ("operator", "delegate_call")]
    assert [(each.name, each.node, each.unit) for each in found] == [
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
    *inside, call = (each.raw for each in found)
    assert all(0 < sum(parts) <= whole for *parts, whole in zip(*inside, call, strict=True))


def test_what_a_delegate_counts_without_a_name_or_the_runtime_s_clock_is_of_no_known_unit() -> None:
    call = Event(name="DELEGATE_CALL", start=1_000, end=2_000)
    inside = Event(name=None, delegate_identifier="7", start=0, end=900)
    assert [(each.name, each.unit, each.raw) for each in measured([inside, call])] == [
        ("7", "ticks", (900.0,)),
        ("DELEGATE_CALL #0", "us", (1.0,)),
    ]


def test_a_real_log_of_kernels_gives_every_instruction_twice_and_the_program() -> None:
    found = log("kernels_cpu.etdump")
    assert {each.kind for each in found} == {"program", "kernel", "operator_call"} <= set(EVENT_KINDS)
    assert [(each.name, each.event_block, len(each.raw)) for each in found if each.kind != "kernel"] == [
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
def test_an_operator_without_cycles_is_counted_in_the_nearest_that_read_it(
    node: str, counts: Mapping[str, float], where: tuple[str, ...]
) -> None:
    assert counted_in(node, USERS, counts) == where


def test_warm_ups_come_before_each_sample_s_inferences() -> None:
    assert warm_up_runs([2, 3, 4, 5, 7, 8], samples=2, warm_up=1, iterations=2) == {2, 5}
    assert warm_up_runs([1, 2], samples=2, warm_up=0, iterations=1) == set()
    assert warm_up_runs([1, 2, 3], samples=2, warm_up=0, iterations=1) is None
