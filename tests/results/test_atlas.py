"""The rows of the cases of a collection."""

from __future__ import annotations

from dataclasses import asdict, replace

from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import Precision
from qnnsweep.tasks.records import CaseOutcome
from qnnsweep.tasks.results.atlas import rule_verdict, states_in_words
from qnnsweep.tasks.results.rows import rows
from tests.sample_records import OUTCOME, TOOLCHAIN, collection_cell

RUN = "20261121T094931Z-5fcc"


def test_a_collection_has_a_row_per_case_and_a_sentence_with_their_states(request_8a8w: Request) -> None:
    tables = rows(RUN, [collection_cell(request_8a8w)], TOOLCHAIN)
    (cell,) = tables["cells"]
    assert (cell["outcome"], cell["diagnosis"]) == ("passed", "2 cases: 1 wrong, 1 not exported.")
    wrong, skipped = tables["atlas"]
    assert {name: wrong[name] for name in asdict(OUTCOME)} == asdict(OUTCOME)
    assert (skipped["arch"], skipped["state"], skipped["seconds"]) == (request_8a8w.soc.arch, "not_exported", None)
    assert tables["operators"] == tables["outputs"] == []


def test_states_are_counted_in_the_order_of_the_states() -> None:
    states: list[CaseOutcome] = [replace(OUTCOME, state=state) for state in ("refused", "exact", "refused")]
    assert states_in_words(states) == ["1 exact", "2 refused"]


def test_a_cell_that_a_rule_calls_impossible_says_how_many_cases_work(request_8a8w: Request) -> None:
    old = replace(
        request_8a8w,
        scheme=replace(request_8a8w.scheme, precision=Precision.float16, quant_dtype=None),
        soc=replace(request_8a8w.soc, arch=68),
    )
    (sentence,) = rule_verdict(collection_cell(old))
    assert sentence.startswith("A rule calls this cell impossible (Hexagon v68 computes no 16-bit float; ")
    assert sentence.endswith("): the compiler accepts 1 of 1 cases, and 0 of them are right.")
    assert [*rule_verdict(collection_cell(request_8a8w))] == []
