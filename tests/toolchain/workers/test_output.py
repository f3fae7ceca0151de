"""The log of a worker has the beginning and the end of its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.units import MIB
from qnnsweep.tasks.toolchain.workers.output import LOG_BYTES, SharedLog

import faulty_calls  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import WorkersWith

LIMIT = 10
HALF = LIMIT // 2


@given(chunks=st.lists(st.binary(max_size=3 * LIMIT)), start=st.integers(0, 4 * LIMIT))
def test_a_part_of_the_output_is_returned_or_its_length(chunks: list[bytes], start: int) -> None:
    log = SharedLog(LIMIT)
    for chunk in chunks:
        log.add(chunk)
    output = b"".join(chunks)
    assert log.length == len(output)
    tail_start = max(HALF, len(output) - HALF)
    dropped = tail_start - max(HALF, start)
    notice = f"\n[qnnsweep: {dropped} bytes of this log were dropped here]\n".encode() if dropped > 0 else b""
    assert log.since(start) == output[start:HALF] + notice + output[max(start, tail_start) :]


@pytest.mark.toolchain
def test_only_the_first_and_the_last_part_of_a_log_of_any_length_are_stored(
    workers_with: WorkersWith, resources: Resources
) -> None:
    mebibytes = LOG_BYTES // MIB + 24
    done = workers_with().call("lower", faulty_calls.print_mebibytes, mebibytes)
    assert done.value == mebibytes
    log = resources.store.read(done.log)
    assert log.startswith(b"the first line\nxxx")
    assert log.endswith(b"xxx\nthe last line\n")
    printed = mebibytes * MIB + len("the first line\n" + "\nthe last line\n")
    notice = f"\n[qnnsweep: {printed - LOG_BYTES} bytes of this log were dropped here]\n".encode()
    assert log.count(notice) == 1
    assert len(log) == LOG_BYTES + len(notice)
