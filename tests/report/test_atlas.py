"""The pages of an operator atlas."""

from __future__ import annotations

from typing import Any

from qnnsweep.tasks.records.atlas import AtlasRow
from qnnsweep.tasks.records.tables import columns
from qnnsweep.tasks.report.atlas import atlas_markdown, render_atlas
from qnnsweep.tasks.report.format import markdown
from tests.sample_tables import RUN


def row(case: str, scheme: str, state: str, **values: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {column.name: None for column in columns(AtlasRow)}
    names = {"model": "operator_suite", "scheme": scheme, "soc": "SM8650", "toolchain": "default", "device": "local"}
    of_case = {"case": case, "operator": case.partition("_")[0], "inputs": "float32[2]", "state": state, "targets": ()}
    return {**empty, **names, **of_case, **values}


ROWS = [
    row("add_1", "fp16", "exact"),
    row("add_2", "fp16", "delegated", final_snr_db=61.25),
    row("median_1", "fp16", "cpu", why="aten_median stays on the <CPU>"),
    row("add_1", "8a8w", "wrong", why="aten.add.Tensor is introduced (3.0 dB)", final_snr_db=3.0),
    row("add_2", "8a8w", "not_exported", why="the suite skips it: no | reason"),
    row("median_1", "8a8w", "aborted", why="SIGSEGV"),
]


def test_the_grid_has_a_line_per_case_and_a_column_per_scheme() -> None:
    page = render_atlas(RUN, ROWS)
    assert "<h1>2 of 5 tried cases can be used</h1>" in page
    assert page.count("<tr data-states=") == 3
    assert '<tr data-states="exact wrong">' in page
    assert '<span data-state="delegated">delegated 61.2 dB</span>' in page
    assert "aten_median stays on the &lt;CPU&gt;" in page
    assert 'src="' not in page, "it loads no other file"
    assert page.count("<script>") == 1


def test_the_markdown_counts_the_states_of_every_operator_and_lists_what_is_wrong() -> None:
    lines = atlas_markdown(RUN, ROWS).splitlines()
    assert "| add | 1 exact, 1 delegated | 1 wrong, 1 not exported |" in lines
    assert "| median | 1 cpu | 1 aborted |" in lines
    assert "## Wrong or aborted: 2 cases" in lines
    wrong = ("add_1", "float32[2]", "8a8w SM8650", "wrong", "aten.add.Tensor is introduced (3.0 dB)")
    assert f"| {' | '.join(map(markdown, wrong))} |" in lines
    assert "| fp16 SM8650 | 1 | 1 | 1 |  |  |  |" in lines
    assert "| 8a8w SM8650 |  |  |  | 1 | 1 | 1 |" in lines
