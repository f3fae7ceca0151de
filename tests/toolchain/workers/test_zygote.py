"""Calls that are forked from one zygote: they share its value, and none can harm another."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.tasks.errors import EvidenceError, MachineFault, ToolchainError
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from tests.processes import eventually, has_ended
from tests.toolchain.workers.test_caller import CALLER, SOON_S, kill_a_caller, kill_process
from tests.toolchain.workers.test_pool import log_of, scratch_folders

import faulty_calls  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import WorkersWith

pytestmark = pytest.mark.toolchain

ZYGOTE_CALLER = CALLER.replace(
    'workers.call("lower", getattr(faulty_calls, name), argument)',
    """with workers.zygote("key", "edge", faulty_calls.give, "value") as zygote:
        zygote.call("lower", faulty_calls.in_fork, name, argument)""",
)


def add(workers: WorkerPool, folder: Path, word: str) -> tuple[list[str], int, int, str]:
    with workers.zygote("key", "edge", faulty_calls.make_zygote, str(folder)) as zygote:
        return zygote.call("lower", faulty_calls.add_to, word).value


def test_users_of_one_key_share_a_zygote_and_none_sees_what_another_did_to_its_value(
    workers_with: WorkersWith, resources: Resources, tmp_path: Path
) -> None:
    workers, before = workers_with(), scratch_folders(resources.store)
    words = ["a", "b", "c", "d"]
    with workers.zygote("key", "edge", faulty_calls.make_zygote, str(tmp_path)), ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda word: add(workers, tmp_path, word), words))
        (zygote,) = [int(path.name.removeprefix("zygote-")) for path in tmp_path.iterdir()]
    assert [value for value, *_ in answers] == [["made once", word] for word in words]
    pids = [pid for _, pid, _, _ in answers]
    assert len({zygote, *pids}) == 5
    assert pids == [session for _, _, session, _ in answers]
    assert len({folder for *_, folder in answers}) == 4
    assert all(map(has_ended, [zygote, *pids]))
    assert scratch_folders(resources.store) == before
    assert workers.calls == {"lower": 4}
    assert [(cost.stage, cost.seconds > 0, cost.peak_bytes > 0) for cost in workers.costs if cost.stage == "edge"] == [
        ("edge", True, True)
    ]


def test_a_zygote_is_started_again_after_its_last_user_has_left(workers_with: WorkersWith, tmp_path: Path) -> None:
    workers = workers_with()
    add(workers, tmp_path, "a")
    add(workers, tmp_path, "b")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_log_of_a_call_begins_with_the_log_of_its_zygote(
    workers_with: WorkersWith, resources: Resources, tmp_path: Path
) -> None:
    with workers_with().zygote("key", "edge", faulty_calls.make_zygote, str(tmp_path)) as zygote:
        logs = [zygote.call("lower", faulty_calls.add_to, word).log for word in ("a", "b")]
    assert [resources.store.read(log) for log in logs] == [
        b"the zygote is warm\nadding a\n",
        b"the zygote is warm\nadding b\n",
    ]


@pytest.mark.parametrize(
    ("misdeed", "cause"),
    [
        (("abort_after_words",), "SIGABRT"),
        (("read_address_zero",), "SIGSEGV"),
        (("leave_at_once", 3), "exit"),
        (("raise_key_error",), "KeyError"),
        (("give_what_cannot_be_sent",), "exit"),
        (("leave_a_process_running", "abort"), "SIGABRT"),
    ],
)
def test_a_call_that_fails_leaves_its_zygote_and_its_other_forks_intact(
    misdeed: tuple[object, ...], cause: str, workers_with: WorkersWith, resources: Resources, tmp_path: Path
) -> None:
    with workers_with().zygote("key", "edge", faulty_calls.make_zygote, str(tmp_path)) as zygote:
        with pytest.raises(ToolchainError) as raised:
            zygote.call("lower", faulty_calls.in_fork, *misdeed)
        assert (raised.value.stage, raised.value.cause) == ("lower", cause)
        assert log_of(resources.store, raised.value).startswith("the zygote is warm\n")
        assert zygote.call("lower", faulty_calls.add_to, "after").value[0] == ["made once", "after"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_process_that_a_forked_call_leaves_running_ends_with_it(workers_with: WorkersWith, tmp_path: Path) -> None:
    with workers_with().zygote("key", "edge", faulty_calls.make_zygote, str(tmp_path)) as zygote:
        pid = zygote.call("lower", faulty_calls.in_fork, "leave_a_process_running", "return").value
        assert isinstance(pid, int)
        assert eventually(lambda: has_ended(pid), SOON_S)


def test_deadline_and_memory_limit_hold_for_a_forked_call(workers_with: WorkersWith, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with workers_with(deadline_s=3).zygote("key", "edge", faulty_calls.give, "value") as zygote:
        with pytest.raises(ToolchainError, match=r"^lower failed: deadline of 3 s"):
            zygote.call("lower", faulty_calls.in_fork, "hang", str(pids))
        assert eventually(lambda: all(has_ended(int(pid)) for pid in pids.read_text().split()), SOON_S)
        assert zygote.call("lower", faulty_calls.in_fork, "give", "fine").value == "fine"
    with (
        workers_with(memory_bytes=2**30).zygote("key", "edge", faulty_calls.give, "value") as zygote,
        pytest.raises(ToolchainError, match=r"^lower failed: memory limit of 1 GiB"),
    ):
        zygote.call("lower", faulty_calls.in_fork, "eat_memory")


def test_the_error_of_a_zygote_that_cannot_start_is_raised_by_every_call(workers_with: WorkersWith) -> None:
    workers = workers_with()
    with workers.zygote("abort", "edge", faulty_calls.abort_after_words) as zygote:
        for _ in range(2):
            with pytest.raises(ToolchainError, match=r"^edge failed: SIGABRT"):
                zygote.call("lower", faulty_calls.add_to, "never")
    with (
        workers.zygote("refuse", "edge", faulty_calls.refuse, "evidence") as zygote,
        pytest.raises(EvidenceError, match=r"^not like this$"),
    ):
        zygote.call("lower", faulty_calls.add_to, "never")
    assert workers.calls == {}


def test_a_zygote_that_was_killed_is_started_again_for_the_next_call(workers_with: WorkersWith, tmp_path: Path) -> None:
    with workers_with().zygote("key", "edge", faulty_calls.make_zygote, str(tmp_path)) as zygote:
        zygote.call("lower", faulty_calls.kill_the_zygote)
        assert zygote.call("lower", faulty_calls.add_to, "after").value[0] == ["made once", "after"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_zygote_that_is_killed_twice_while_it_starts_is_a_fault_of_the_machine(
    workers_with: WorkersWith, tmp_path: Path
) -> None:
    with (
        workers_with().zygote("key", "edge", faulty_calls.kill_this_process, str(tmp_path), 2) as zygote,
        pytest.raises(MachineFault, match=r"^edge failed twice: the worker was killed"),
    ):
        zygote.call("lower", faulty_calls.add_to, "never")


def test_forked_calls_start_before_other_calls(workers_with: WorkersWith, tmp_path: Path) -> None:
    workers = workers_with(parallel=1)
    with (
        workers.zygote("key", "edge", faulty_calls.make_zygote, str(tmp_path)) as zygote,
        ThreadPoolExecutor(3) as pool,
    ):
        zygote.call("lower", faulty_calls.add_to, "first")
        busy = pool.submit(workers.call, "export", time.sleep, 2)
        time.sleep(0.5)
        later = pool.submit(workers.call, "quantize", faulty_calls.give, "later")
        time.sleep(0.5)
        sooner = pool.submit(zygote.call, "lower", faulty_calls.add_to, "sooner")
        for future in (busy, later, sooner):
            future.result()
    assert [cost.stage for cost in workers.costs[-3:]] == ["export", "lower", "quantize"]


def test_a_killed_caller_leaves_neither_zygote_nor_fork_behind(tmp_path: Path) -> None:
    assert kill_a_caller(ZYGOTE_CALLER, tmp_path, kill_process) == 2
