"""Whatever a call does, its caller gets a value or one error, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from qnnsweep.conf.units import KIB
from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError, MachineFault, RequestError, ToolchainError
from qnnsweep.tasks.records import Blob
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.output import LOG_BYTES
from tests.processes import eventually, has_ended
from tests.toolchain.workers.test_caller import SOON_S

import faulty_calls  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import WorkersWith

pytestmark = pytest.mark.toolchain


def log_of(store: Store, error: ToolchainError) -> str:
    assert error.log is not None
    blob = store.find(error.log)
    assert blob is not None
    return store.read(blob).decode()


def scratch_folders(store: Store) -> list[Path]:
    """Return the scratch folders of this process: others use the store too."""
    return [path for path in store.partial.iterdir() if f"-{os.getpid()}-" in path.name]


def test_a_value_comes_back_with_its_log_and_the_seconds_it_took(
    workers_with: WorkersWith, resources: Resources
) -> None:
    workers = workers_with()
    done = workers.call("export", faulty_calls.give, {"answer": (42, Blob(sha256="0" * 64, size=1))})
    assert done.value == {"answer": (42, Blob(sha256="0" * 64, size=1))}
    assert resources.store.read(done.log) == b"giving it back\n"
    assert done.seconds > 0


def test_a_value_of_many_megabytes_comes_back_whole(workers_with: WorkersWith) -> None:
    value = os.urandom(32 << 20)
    assert workers_with().call("export", faulty_calls.give, value).value == value


def test_a_call_has_a_process_a_session_and_a_scratch_folder_of_its_own(
    workers_with: WorkersWith, resources: Resources
) -> None:
    workers, calls = workers_with(), []
    before = scratch_folders(resources.store)
    for _ in range(2):
        calls.append(workers.call("lower", faulty_calls.where_and_as_whom).value)
    for folder, files, pid, session, sdk in calls:
        assert (Path(folder).name, files) == ("lower", ["left_behind"])
        assert Path(folder).is_relative_to(resources.store.partial)
        assert pid == session != os.getsid(0)
        assert Path(sdk).is_dir()
    assert calls[0][0] != calls[1][0]
    assert calls[0][2] != calls[1][2]
    assert scratch_folders(resources.store) == before


def test_the_callers_own_environment_and_folder_stay_as_they_were(workers_with: WorkersWith) -> None:
    before = (dict(os.environ), Path.cwd())
    workers_with().call("export", faulty_calls.give, None)
    assert (dict(os.environ), Path.cwd()) == before


def test_the_whole_log_is_kept_whoever_wrote_it_in_the_order_it_was_written(
    workers_with: WorkersWith, resources: Resources
) -> None:
    done = workers_with().call("lower", faulty_calls.print_everywhere)
    assert resources.store.read(done.log).decode().splitlines() == [
        "python out",
        "native out",
        "python err",
        "native err",
        "a process of its own",
        "no newline at the end",
    ]


def test_a_call_can_read_what_it_has_printed_native_output_included(
    workers_with: WorkersWith, resources: Resources
) -> None:
    done = workers_with().call("lower", faulty_calls.read_own_output)
    assert done.value == ["python\nnative\n", "", "native\n"]
    assert resources.store.read(done.log) == b"before\npython\nnative\nnative\n"


def test_a_call_that_prints_without_end_ends_at_its_deadline_and_uses_no_more_memory_and_no_disk(
    workers_with: WorkersWith, resources: Resources
) -> None:
    before = psutil.Process().memory_info().rss
    with pytest.raises(
        ToolchainError, match=r"^lower failed: deadline of 2 s\n(?:again and again\n?){11,12}"
    ) as raised:
        workers_with(deadline_s=2).call("lower", faulty_calls.print_without_end)
    assert raised.value.cause == "deadline"
    log = log_of(resources.store, raised.value)
    assert log.startswith("the first line\nagain and again\n")
    assert len(log) < LOG_BYTES + 16 * KIB  # with a line for what was dropped, and the stacks
    assert psutil.Process().memory_info().rss - before < 8 * LOG_BYTES


def test_a_python_exception_is_a_toolchain_error_with_stage_and_name_and_its_traceback_in_the_log(
    workers_with: WorkersWith, resources: Resources
) -> None:
    with pytest.raises(ToolchainError) as raised:
        workers_with().call("quantize", faulty_calls.raise_key_error)
    error = raised.value
    assert (error.stage, error.cause, str(error)) == ("quantize", "KeyError", "quantize failed: KeyError: 'absent'")
    log = log_of(resources.store, error)
    assert log.startswith("about to look it up\nTraceback (most recent call last):\n")
    assert log.endswith("KeyError: 'absent'\n")


def test_an_error_of_a_pass_is_told_with_the_pass_the_node_and_the_line(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError) as raised:
        workers_with().call("lower", faulty_calls.raise_in_a_pass)
    assert (raised.value.cause, str(raised.value)) == (
        "KeyError",
        "lower failed: KeyError: 'scale'; in the pass reads_scales; at mul, `return x * 2` (net.py:8)",
    )


def test_an_exception_without_a_message_is_named_all_the_same(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: AssertionError: AssertionError\(\)$"):
        workers_with().call("lower", faulty_calls.raise_without_a_word)


@pytest.mark.parametrize(
    ("kind", "error"), [("request", RequestError), ("environment", EnvironmentUnusable), ("evidence", EvidenceError)]
)
def test_what_is_not_the_toolchains_fault_comes_back_as_itself(
    kind: str, error: type[Exception], workers_with: WorkersWith
) -> None:
    with pytest.raises(error, match=r"^not like this$") as raised:
        workers_with().call("export", faulty_calls.refuse, kind)
    assert type(raised.value) is error


def test_any_other_error_of_ours_is_the_stages_failure(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: DeviceError: not like this$"):
        workers_with().call("lower", faulty_calls.refuse, "device")


def test_an_abort_is_named_with_the_last_log_lines_native_ones_included(
    workers_with: WorkersWith, resources: Resources
) -> None:
    with pytest.raises(ToolchainError) as raised:
        workers_with().call("lower", faulty_calls.abort_after_words)
    error = raised.value
    last = [f"line {number}" for number in range(faulty_calls.LINES_BEFORE - 11, faulty_calls.LINES_BEFORE)]
    assert (error.stage, error.cause) == ("lower", "SIGABRT")
    assert str(error).splitlines() == ["lower failed: SIGABRT", *last, "native last words"]
    first = [f"line {number}" for number in range(faulty_calls.LINES_BEFORE)]
    assert log_of(resources.store, error).splitlines() == [*first, "native last words"]


def test_a_segmentation_fault_is_named_by_its_signal(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: SIGSEGV\nreaching out$") as raised:
        workers_with().call("lower", faulty_calls.read_address_zero)
    assert (raised.value.cause, raised.value.signal) == ("SIGSEGV", signal.SIGSEGV)


def test_a_toolchain_that_ends_itself_without_memory_is_a_fault_of_the_machine(workers_with: WorkersWith) -> None:
    text = "^this machine is short of memory or files; run again: .*failed to map segment from shared object"
    with pytest.raises(MachineFault, match=text):
        workers_with().call("lower", faulty_calls.load_qnn_without_memory)


def test_leaving_by_sys_exit_is_a_failure_even_with_code_zero(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: SystemExit: 0$") as raised:
        workers_with().call("lower", faulty_calls.leave, 0)
    assert raised.value.cause == "SystemExit"


def test_leaving_without_an_answer_is_a_failure_that_tells_the_exit_code(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: exit code 0 without an answer$") as raised:
        workers_with().call("lower", faulty_calls.leave_at_once, 0)
    assert raised.value.cause == "exit"


def test_a_value_that_cannot_be_sent_is_a_failure_that_says_why(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"exit code 1 without an answer(?s:.*)pickle"):
        workers_with().call("lower", faulty_calls.give_what_cannot_be_sent)


@pytest.mark.timeout(120)
def test_a_call_without_end_ends_when_it_has_used_its_processor_time(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^cure failed: no end after 1 s of processor time\n") as raised:
        workers_with(deadline_s=100).call("cure", faulty_calls.print_without_end, most_cpu_s=1)
    assert (raised.value.cause, raised.value.signal) == ("no end", None)


@pytest.mark.timeout(120)
def test_a_hang_ends_at_the_deadline_and_leaves_no_process(workers_with: WorkersWith, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(ToolchainError, match=r"^lower failed: deadline of 2 s\ngoing to sleep$") as raised:
        workers_with(deadline_s=2).call("lower", faulty_calls.hang, str(pids))
    assert (raised.value.cause, raised.value.signal) == ("deadline", None)
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 3
    assert eventually(lambda: all(map(has_ended, left)), SOON_S)


@pytest.mark.timeout(120)
def test_a_worker_above_its_memory_limit_is_stopped(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: memory limit of 1 GiB") as raised:
        workers_with(memory_bytes=2**30).call("lower", faulty_calls.eat_memory)
    assert raised.value.cause == "memory limit"


def test_a_process_that_a_call_leaves_running_ends_with_it(workers_with: WorkersWith) -> None:
    pid = workers_with().call("lower", faulty_calls.leave_a_process_running, "return").value
    assert eventually(lambda: has_ended(pid), SOON_S)


@pytest.mark.timeout(120)
def test_a_process_that_an_aborted_call_leaves_running_neither_outlives_nor_delays_it(
    workers_with: WorkersWith,
) -> None:
    with pytest.raises(ToolchainError, match="SIGABRT") as raised:
        workers_with().call("lower", faulty_calls.leave_a_process_running, "abort")
    pid = int(str(raised.value).rpartition("forked ")[2])
    assert eventually(lambda: has_ended(pid), SOON_S)


@pytest.mark.parametrize("how", ["return", "abort"])
def test_a_daemon_that_a_call_has_started_ends_with_the_call(
    how: str, workers_with: WorkersWith, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    if how == "abort":
        with pytest.raises(ToolchainError, match="SIGABRT"):
            workers_with().call("lower", faulty_calls.leave_a_daemon, how, str(pids))
    else:
        assert workers_with().call("lower", faulty_calls.leave_a_daemon, how, str(pids)).value == how
    assert has_ended(int(pids.read_text()))


def test_the_memory_of_a_daemon_counts_towards_the_limit(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: memory limit of 1 GiB"):
        workers_with(memory_bytes=2**30).call("lower", faulty_calls.eat_memory_in_a_daemon)


def test_memory_that_forks_share_counts_once(workers_with: WorkersWith) -> None:
    assert workers_with(memory_bytes=2**30).call("lower", faulty_calls.share_memory_with_forks, 200, 20).value == 200


def test_memory_that_forks_do_not_share_counts_once_per_fork(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: memory limit of 1 GiB"):
        workers_with(memory_bytes=2**30).call("lower", faulty_calls.eat_memory_in_forks, 200, 6)


@pytest.mark.timeout(120)
def test_half_an_answer_does_not_delay_the_deadline(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: deadline of 2 s$"):
        workers_with(deadline_s=2).call("lower", faulty_calls.send_half_an_answer)


def test_an_answer_that_cannot_be_read_is_one_error(workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: unreadable answer: UnpicklingError: ") as raised:
        workers_with().call("lower", faulty_calls.send_nonsense)
    assert raised.value.cause == "unreadable answer"


def test_the_answer_and_the_log_of_a_call_that_removes_its_scratch_folder_are_not_lost(
    workers_with: WorkersWith, resources: Resources
) -> None:
    before = scratch_folders(resources.store)
    done = workers_with().call("lower", faulty_calls.remove_scratch_folder, "the answer")
    assert (done.value, resources.store.read(done.log)) == ("the answer", b"removed\n")
    assert scratch_folders(resources.store) == before


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "GeneratorExit", "Unusual"])
def test_an_error_that_is_no_exception_is_named_too(name: str, workers_with: WorkersWith) -> None:
    with pytest.raises(ToolchainError, match=rf"^lower failed: {name}: stop$") as raised:
        workers_with().call("lower", faulty_calls.raise_what_is_no_exception, name)
    assert raised.value.cause == name


def test_calls_are_counted_stage_by_stage_failed_ones_too(workers_with: WorkersWith) -> None:
    workers = workers_with()
    assert workers.calls == {}
    workers.call("export", faulty_calls.give, 1)
    with pytest.raises(ToolchainError):
        workers.call("export", faulty_calls.raise_key_error)
    workers.call("compare", faulty_calls.give, 1)
    assert workers.calls == {"export": 2, "compare": 1}


def test_at_most_so_many_run_at_once_whatever_number_of_threads_asks(workers_with: WorkersWith, tmp_path: Path) -> None:
    workers = workers_with(parallel=2)
    with ThreadPoolExecutor(5) as pool:
        company = list(
            pool.map(lambda _: workers.call("lower", faulty_calls.count_company, str(tmp_path)).value, range(5))
        )
    assert max(company) == 2
    assert workers.calls == {"lower": 5}


def test_a_failed_call_gives_its_place_to_the_next(workers_with: WorkersWith) -> None:
    workers = workers_with(parallel=1)
    for _ in range(2):
        with pytest.raises(ToolchainError):
            workers.call("lower", faulty_calls.leave_at_once, 3)
    assert workers.call("lower", faulty_calls.give, "fine").value == "fine"


def test_a_call_reports_its_start_only_when_it_has_a_core(workers_with: WorkersWith) -> None:
    starts: list[float] = []
    workers = workers_with(parallel=1).reporting(lambda: starts.append(time.monotonic()))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: workers.call("export", time.sleep, 1.0), range(2)))
    first, second = starts
    assert second - first >= 1.0


def test_a_zygote_and_its_call_report_their_starts_to_the_pool_through_which_they_are_used(
    workers_with: WorkersWith,
) -> None:
    starts: list[str] = []
    workers = workers_with()
    with workers.reporting(lambda: starts.append("a")).zygote("key", "edge", faulty_calls.give, "value") as zygote:
        zygote.call("lower", isinstance, str)
        with workers.reporting(lambda: starts.append("b")).zygote("key", "edge", faulty_calls.give, "value") as same:
            same.call("lower", isinstance, str)
    assert starts == ["a", "a", "b"]


@pytest.mark.parametrize(("number", "whom"), [(9, "worker"), (9, "guard"), (15, "worker"), (1, "worker")])
def test_a_call_whose_process_is_killed_from_outside_is_started_again_once(
    number: int, whom: str, workers_with: WorkersWith, resources: Resources, tmp_path: Path
) -> None:
    before = scratch_folders(resources.store)
    assert workers_with().call("lower", faulty_calls.kill_this_process, str(tmp_path), 1, whom, number).value == 2
    assert scratch_folders(resources.store) == before


KILLED = "the worker was killed"


@pytest.mark.parametrize(
    ("number", "whom", "why"),
    [(9, "worker", KILLED), (15, "worker", f"{KILLED}: another process sent SIGTERM"), (9, "guard", "the guard of ")],
)
def test_a_call_whose_process_is_killed_twice_is_a_fault_of_the_machine_and_not_of_the_cell(
    number: int, whom: str, why: str, workers_with: WorkersWith, tmp_path: Path
) -> None:
    with pytest.raises(MachineFault, match=rf"^lower failed twice: {why}"):
        workers_with().call("lower", faulty_calls.kill_this_process, str(tmp_path), 2, whom, number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start-1", "start-2"]


def test_a_fork_server_that_was_killed_is_started_again_for_the_next_call(
    workers_with: WorkersWith, tmp_path: Path
) -> None:
    workers = workers_with()
    server = workers._supervisor.server()
    for _ in range(2):
        assert workers.call("lower", faulty_calls.give, "alive").value == "alive"
        assert server._process is not None
        server._process.kill()
        server._process.wait()


def test_the_log_of_a_call_that_exceeds_its_deadline_has_the_stacks_of_both_sides(
    workers_with: WorkersWith, resources: Resources, tmp_path: Path
) -> None:
    with pytest.raises(ToolchainError, match=r"^lower failed: deadline of 2 s\ngoing to sleep$") as raised:
        workers_with(deadline_s=2).call("lower", faulty_calls.hang, str(tmp_path / "pids"))
    log = log_of(resources.store, raised.value)
    child, _, waiting = log.partition("[qnnsweep: the process that waited was here]")
    assert "faulty_calls.py" in child
    assert " in hang" in child
    assert "in follow" in waiting
