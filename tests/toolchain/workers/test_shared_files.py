"""Files of a call in /dev/shm count towards the memory limit of the call, and do not outlive it, if root runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.tasks.errors import ToolchainError
from qnnsweep.tasks.toolchain.workers.shared_files import private_bytes
from tests.devices.loopback import require_root

import faulty_calls  # isort: skip

if TYPE_CHECKING:
    from tests.toolchain.conftest import WorkersWith

pytestmark = pytest.mark.toolchain


def test_files_without_end_exceed_the_memory_limit(workers_with: WorkersWith) -> None:
    require_root("to give a call a /dev/shm of its own")
    with pytest.raises(ToolchainError, match=r"^lower failed: memory limit of 1 GiB") as raised:
        workers_with(memory_bytes=2**30).call("lower", faulty_calls.fill_shared_folder, 1800)
    assert raised.value.cause == "memory limit"


def test_files_are_gone_when_their_call_has_ended(workers_with: WorkersWith) -> None:
    require_root("to give a call a /dev/shm of its own")
    name = workers_with().call("lower", faulty_calls.fill_shared_folder, 64).value
    assert name.endswith("-1")
    assert not (Path("/dev/shm") / name).exists()


def test_a_mapped_file_counts_once(workers_with: WorkersWith) -> None:
    assert workers_with(memory_bytes=2**30).call("lower", faulty_calls.map_shared_file, 500).value == 500


def test_the_files_that_all_processes_share_belong_to_no_call() -> None:
    assert private_bytes(os.getpid()) == 0
    assert private_bytes(2**22 + 1) == 0  # no process has this id
