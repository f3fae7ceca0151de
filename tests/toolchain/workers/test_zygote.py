"""Many calls stand on what one child made: each in a fork of it, none able to harm another."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks.errors import EvidenceError, ToolchainError
from tasks.toolchain.workers.pool import Children
from tests.processes import has_ended

from .test_pool import CALLER, SOON_S, eventually, kill_a_caller, log_of, scratch_folders

import misbehave  # isort: skip

if TYPE_CHECKING:
    from flows.resources import Resources
    from tests.toolchain.conftest import ChildrenWith

pytestmark = pytest.mark.toolchain

ON_GROUND = CALLER.replace(
    'children.call("lower", getattr(misbehave, name), argument)',
    """with children.ground("key", "edge", misbehave.give, "ground") as ground:
        ground.call("lower", misbehave.on_ground, name, argument)""",
)


def add(children: Children, folder: Path, word: str) -> tuple[list[str], int, int, str]:
    with children.ground("key", "edge", misbehave.make_ground, str(folder)) as ground:
        return ground.call("lower", misbehave.add_to, word).value


def test_holders_of_one_key_share_a_ground_and_none_sees_what_another_did_to_it(
    children_with: ChildrenWith, resources: Resources, tmp_path: Path
) -> None:
    children, before = children_with(), scratch_folders(resources.store)
    words = ["a", "b", "c", "d"]
    with children.ground("key", "edge", misbehave.make_ground, str(tmp_path)), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda word: add(children, tmp_path, word), words))
        (made,) = [int(path.name.removeprefix("ground-")) for path in tmp_path.iterdir()]
    assert [seen for seen, *_ in found] == [["made once", word] for word in words]
    pids = [pid for _, pid, _, _ in found]
    assert len({made, *pids}) == 5
    assert pids == [session for _, _, session, _ in found]
    assert len({folder for *_, folder in found}) == 4
    assert all(map(has_ended, [made, *pids]))
    assert scratch_folders(resources.store) == before
    assert children.calls == {"lower": 4}
    assert [(each.stage, each.seconds > 0, each.peak_bytes > 0) for each in children.took if each.stage == "edge"] == [
        ("edge", True, True)
    ]


def test_a_ground_is_made_anew_when_its_last_holder_has_left(children_with: ChildrenWith, tmp_path: Path) -> None:
    children = children_with()
    add(children, tmp_path, "a")
    add(children, tmp_path, "b")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_log_of_a_call_begins_with_the_log_of_its_ground(
    children_with: ChildrenWith, resources: Resources, tmp_path: Path
) -> None:
    with children_with().ground("key", "edge", misbehave.make_ground, str(tmp_path)) as ground:
        logs = [ground.call("lower", misbehave.add_to, word).log for word in ("a", "b")]
    assert [resources.store.read(log) for log in logs] == [
        b"the ground is made\nadding a\n",
        b"the ground is made\nadding b\n",
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
def test_a_call_that_fails_leaves_its_ground_and_its_neighbours_whole(
    misdeed: tuple[object, ...], cause: str, children_with: ChildrenWith, resources: Resources, tmp_path: Path
) -> None:
    with children_with().ground("key", "edge", misbehave.make_ground, str(tmp_path)) as ground:
        with pytest.raises(ToolchainError) as raised:
            ground.call("lower", misbehave.on_ground, *misdeed)
        assert (raised.value.stage, raised.value.cause) == ("lower", cause)
        assert log_of(resources.store, raised.value).startswith("the ground is made\n")
        assert ground.call("lower", misbehave.add_to, "after").value[0] == ["made once", "after"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_process_that_a_call_on_a_ground_leaves_running_ends_with_it(
    children_with: ChildrenWith, tmp_path: Path
) -> None:
    with children_with().ground("key", "edge", misbehave.make_ground, str(tmp_path)) as ground:
        pid = ground.call("lower", misbehave.on_ground, "leave_a_process_running", "return").value
        assert isinstance(pid, int)
        assert eventually(lambda: has_ended(pid), SOON_S)


def test_deadline_and_memory_limit_hold_for_a_call_on_a_ground(children_with: ChildrenWith, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with children_with(deadline_s=3).ground("key", "edge", misbehave.give, "ground") as ground:
        with pytest.raises(ToolchainError, match=r"^lower failed: deadline of 3 s"):
            ground.call("lower", misbehave.on_ground, "hang", str(pids))
        assert eventually(lambda: all(has_ended(int(pid)) for pid in pids.read_text().split()), SOON_S)
        assert ground.call("lower", misbehave.on_ground, "give", "fine").value == "fine"
    with (
        children_with(memory_bytes=2**30).ground("key", "edge", misbehave.give, "ground") as ground,
        pytest.raises(ToolchainError, match=r"^lower failed: memory limit of 1 GiB"),
    ):
        ground.call("lower", misbehave.on_ground, "eat_memory")


def test_a_ground_that_cannot_be_made_is_the_answer_to_every_call_on_it(children_with: ChildrenWith) -> None:
    children = children_with()
    with children.ground("abort", "edge", misbehave.abort_after_words) as ground:
        for _ in range(2):
            with pytest.raises(ToolchainError, match=r"^edge failed: SIGABRT"):
                ground.call("lower", misbehave.add_to, "never")
    with (
        children.ground("refuse", "edge", misbehave.refuse, "evidence") as ground,
        pytest.raises(EvidenceError, match=r"^not like this$"),
    ):
        ground.call("lower", misbehave.add_to, "never")
    assert children.calls == {}


def test_a_killed_ground_fails_the_calls_that_come_after_and_says_so(
    children_with: ChildrenWith, tmp_path: Path
) -> None:
    with children_with().ground("key", "edge", misbehave.make_ground, str(tmp_path)) as ground:
        ground.call("lower", misbehave.kill_the_ground)
        with pytest.raises(ToolchainError, match=r"somebody killed the process .* run again$"):
            ground.call("lower", misbehave.add_to, "never")


def test_calls_on_a_ground_come_before_other_work(children_with: ChildrenWith, tmp_path: Path) -> None:
    children = children_with(parallel=1)
    with (
        children.ground("key", "edge", misbehave.make_ground, str(tmp_path)) as ground,
        ThreadPoolExecutor(3) as pool,
    ):
        ground.call("lower", misbehave.add_to, "first")
        busy = pool.submit(children.call, "export", time.sleep, 2)
        time.sleep(0.5)
        later = pool.submit(children.call, "quantize", misbehave.give, "later")
        time.sleep(0.5)
        sooner = pool.submit(ground.call, "lower", misbehave.add_to, "sooner")
        for each in (busy, later, sooner):
            each.result()
    assert [each.stage for each in children.took[-3:]] == ["export", "lower", "quantize"]


def test_a_killed_caller_leaves_neither_ground_nor_fork_behind(tmp_path: Path) -> None:
    assert kill_a_caller(ON_GROUND, tmp_path) == 2
