"""The compiler's own words, as it prints them."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.records import CompileFacts
from qnnsweep.tasks.toolchain.backends.qnn.compiler_log import compile_facts, errors

REFUSED = """\
[ERROR] [Qnn ExecuTorch]: Output[0] has incorrect Rank 4.
[ERROR] [Qnn ExecuTorch]:  <E> QnnBackend_validateOpConfig failed 3110
[ERROR] [Qnn ExecuTorch]:  <E> QnnBackend_validateOpConfig failed 3110
[WARNING] [Qnn ExecuTorch]: Qnn Backend op validation failed with error: 3110
[INFO 2026-11-21 09:32:59,934 qnn_partitioner.py:136] [QnnPartitioner] aten.index.Tensor | False
"""
COMPILED = """\
====== DDR bandwidth summary ======
spill_bytes=0
fill_bytes=16
write_total_bytes=2048
read_total_bytes=34816

spill_bytes=1
fill_bytes=2
write_total_bytes=3
read_total_bytes=4
"""


def test_errors_are_told_once_without_times_and_names() -> None:
    assert errors(REFUSED) == ["Output[0] has incorrect Rank 4.", "QnnBackend_validateOpConfig failed 3110"]
    assert errors("all is well\n") == []


@pytest.mark.timeout(60)  # with time that grows with the square of the log, minutes
@pytest.mark.parametrize("log", ["\n" * 200_000, "[ERROR] [Qnn ExecuTorch]: a" + " " * 200_000 + "b"])
def test_a_log_of_any_shape_is_read_without_a_hang(log: str) -> None:
    assert len(errors(log)) == log.count("[ERROR]")


def test_each_subgraph_has_its_facts() -> None:
    assert compile_facts(COMPILED) == (
        CompileFacts(subgraph=0, spill_bytes=0, fill_bytes=16, write_total_bytes=2048, read_total_bytes=34816),
        CompileFacts(subgraph=1, spill_bytes=1, fill_bytes=2, write_total_bytes=3, read_total_bytes=4),
    )


def test_half_a_summary_is_no_fact() -> None:
    assert compile_facts(COMPILED.removesuffix("read_total_bytes=4\n")) == ()
    assert compile_facts("") == ()
