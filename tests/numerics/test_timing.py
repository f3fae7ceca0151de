"""Times of a program's own log, one row an event."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.findings import ProfiledEvent
from tasks.numerics.timing import profile
from tasks.toolchain.etdump import read_etdump

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, kw_only=True)
class Event:
    name: str | None
    end: int
    start: int = 1_000
    chain_index: int = 0
    instruction_id: int = 0
    delegate_identifier: str | None = None


def test_an_event_is_one_row_over_all_its_runs_in_microseconds() -> None:
    taken_us = (10, 20, 30, 40, 100)
    (row,) = profile([Event(name="OPERATOR_CALL", end=1_000 + 1_000 * us, instruction_id=3) for us in taken_us])
    assert row == ProfiledEvent(
        name="OPERATOR_CALL #3",
        debug_handle=None,
        delegate=False,
        unit="us",
        count=5,
        p10=14.0,
        p50=30.0,
        p90=76.0,
        mean=40.0,
        minimum=10.0,
        maximum=100.0,
    )


def test_instructions_are_told_apart_and_stay_in_the_order_first_seen() -> None:
    events = [Event(name="DELEGATE_CALL", end=2_000, instruction_id=number) for number in (7, 0, 7)]
    found = [(row.name, row.count, row.delegate) for row in profile(events)]
    assert found == [("DELEGATE_CALL #7", 2, True), ("DELEGATE_CALL #0", 1, True)]


def test_an_event_of_the_whole_program_belongs_to_no_instruction() -> None:
    (row,) = profile([Event(name="Method::execute", end=2_000, chain_index=-1)])
    assert (row.name, row.delegate, row.p50) == ("Method::execute", False, 1.0)


def test_what_a_delegate_counts_and_what_has_no_name_is_left_out() -> None:
    assert profile([Event(name="conv:OpId_1 (cycles)", end=9, delegate_identifier="1"), Event(name=None, end=9)]) == ()


def test_a_real_log_gives_every_instruction_and_the_program() -> None:
    found = profile(read_etdump((DATA / "kernels_cpu.etdump").read_bytes()).events)
    assert [(row.name, row.count) for row in found if row.name.startswith(("Method", "Program", "OPERATOR"))] == [
        ("Method::init", 1),
        ("Program::load_method", 1),
        *((f"OPERATOR_CALL #{number}", 2) for number in range(6)),
        ("Method::execute", 2),
    ]
    assert all(0 < row.minimum <= row.p10 <= row.p50 <= row.p90 <= row.maximum for row in found)
