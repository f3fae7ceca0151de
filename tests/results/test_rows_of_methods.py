"""The row of a cell whose program has two methods, from sample records."""

from __future__ import annotations

from dataclasses import replace

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.results.rows import rows
from tests.sample_records import CONTEXT, DELEGATE, FACTS, TOOLCHAIN, two_methods_cell

RUN = "20260101T000000Z-0123456789ab"


def test_captures_that_differ_in_the_second_method_only_have_different_digests(request_8a8w: Request) -> None:
    cells = [two_methods_cell(request_8a8w, decode=letter) for letter in "667"]
    first, same, other = (row["outputs_sha256"] for row in rows(RUN, cells, TOOLCHAIN)["cells"])
    assert (first == same, first == other) == (True, False)


def test_the_names_in_the_bytes_of_the_program_are_those_of_all_methods(request_8a8w: Request) -> None:
    context = replace(CONTEXT, soc="SM8750", arch=79, build="v3")
    facts = replace(FACTS, delegates=(replace(DELEGATE, context=context),))
    (row,) = rows(RUN, [two_methods_cell(request_8a8w, facts=facts)], TOOLCHAIN)["cells"]
    names = row["program_soc"], row["program_arch"], row["program_qnn"]
    assert names == ("SM8650, SM8750", "v75, v79", "v2, v3")
