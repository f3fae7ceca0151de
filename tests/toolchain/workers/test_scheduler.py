"""The order in which calls start within cores and memory: urgent ones first, then the longest; none waits forever."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.units import GIB
from qnnsweep.tasks.toolchain.workers.scheduler import CostEstimate, Scheduler


class Crowd:
    """Threads that ask for a slot one after the other and keep it until `leave`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.inside: list[str] = []
        self._scheduler = scheduler
        self._leave: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._changed = threading.Condition()

    def ask(self, name: str, *, seconds: float = 1, gib: float = 1, urgent: bool = False) -> None:
        leave, asked = threading.Event(), threading.Event()

        def hold() -> None:
            estimate = CostEstimate(seconds=seconds, peak_bytes=int(gib * GIB))
            place = self._scheduler.slot(estimate, urgent=urgent)
            asked.set()
            with place:
                with self._changed:
                    self.inside.append(name)
                    self._changed.notify_all()
                leave.wait()
                with self._changed:
                    self.inside.remove(name)

        self._leave[name] = leave
        self._threads[name] = threading.Thread(target=hold, daemon=True)
        self._threads[name].start()
        asked.wait()
        self._threads[name].join(0.05)

    def leave(self, name: str) -> None:
        self._leave[name].set()
        self._threads[name].join()
        threading.Event().wait(0.05)


def test_no_more_at_once_than_there_are_cores_the_longest_first() -> None:
    crowd = Crowd(Scheduler(parallel=1, memory_bytes=8 * GIB))
    crowd.ask("running")
    for name, seconds in (("short", 1), ("long", 100), ("middle", 10), ("never seen", float("inf"))):
        crowd.ask(name, seconds=seconds)
    order = []
    for _ in range(5):
        assert len(crowd.inside) == 1
        order.append(crowd.inside[0])
        crowd.leave(order[-1])
    assert order == ["running", "never seen", "long", "middle", "short"]


def test_what_is_urgent_comes_before_what_is_long() -> None:
    crowd = Crowd(Scheduler(parallel=1, memory_bytes=8 * GIB))
    crowd.ask("running")
    crowd.ask("long", seconds=100)
    crowd.ask("urgent", seconds=1, urgent=True)
    crowd.leave("running")
    assert crowd.inside == ["urgent"]


def test_what_does_not_fit_in_memory_waits_and_a_smaller_one_passes() -> None:
    crowd = Crowd(Scheduler(parallel=3, memory_bytes=8 * GIB))
    crowd.ask("six", gib=6)
    crowd.ask("four", gib=4, seconds=100)
    crowd.ask("two", gib=2)
    assert crowd.inside == ["six", "two"]
    crowd.leave("six")
    assert crowd.inside == ["two", "four"]


def test_what_needs_more_than_all_memory_runs_alone() -> None:
    crowd = Crowd(Scheduler(parallel=2, memory_bytes=8 * GIB))
    crowd.ask("small", gib=1)
    crowd.ask("giant", gib=20)
    assert crowd.inside == ["small"]
    crowd.leave("small")
    assert crowd.inside == ["giant"]
    crowd.ask("after", gib=1)
    assert crowd.inside == ["giant"]


def test_memory_that_is_kept_without_working_counts_too() -> None:
    scheduler = Scheduler(parallel=2, memory_bytes=8 * GIB)
    crowd = Crowd(scheduler)
    with scheduler.reserve(6 * GIB):
        crowd.ask("one", gib=1)
        crowd.ask("four", gib=4)
        assert crowd.inside == ["one"]
    crowd.leave("one")
    assert crowd.inside == ["four"]


@given(
    parallel=st.integers(1, 4),
    memory=st.integers(1, 10),
    needs=st.lists(st.tuples(st.integers(0, 12), st.floats(0, 100), st.booleans()), max_size=12),
)
def test_everybody_gets_in_and_never_beyond_cores_and_memory(
    parallel: int, memory: int, needs: list[tuple[int, float, bool]]
) -> None:
    scheduler = Scheduler(parallel=parallel, memory_bytes=memory * GIB)
    guard, inside, beyond = threading.Lock(), [], []

    def work(gib: int, seconds: float, urgent: bool) -> None:
        with scheduler.slot(CostEstimate(seconds=seconds, peak_bytes=gib * GIB), urgent=urgent):
            with guard:
                inside.append(gib)
                if len(inside) > parallel or (len(inside) > 1 and sum(inside) > memory):
                    beyond.append(list(inside))
            with guard:
                inside.remove(gib)

    threads = [threading.Thread(target=work, args=need, daemon=True) for need in needs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [thread.is_alive() for thread in threads] == [False] * len(threads)
    assert beyond == []


def test_a_slot_is_released_by_a_call_that_fails() -> None:
    scheduler = Scheduler(parallel=1, memory_bytes=GIB)
    with pytest.raises(KeyError), scheduler.slot(CostEstimate()):
        raise KeyError
    with ExitStack() as stack:
        stack.enter_context(scheduler.slot(CostEstimate()))
