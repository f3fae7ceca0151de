"""The rows of the cases of a collection."""

from __future__ import annotations

from dataclasses import asdict, replace

from conf.schema import Request
from tasks.records import CaseOutcome
from tasks.results.atlas import states_in_words
from tasks.results.rows import rows
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
