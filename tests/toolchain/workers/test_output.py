"""The log of a worker has the beginning and the end of its output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.toolchain.workers.output import SharedLog

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
