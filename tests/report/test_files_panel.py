"""Tests the panel of a cell with links to its files and ready commands."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from qnnsweep.tasks.report.page import render
from tests.sample_tables import RUN, cell, measured, sweep


@pytest.mark.parametrize(
    ("command", "run"),
    [
        (("qnnsweep", "run", "model=m"), RUN.run_id),
        (("qnnsweep", "recompare", "--run=20260101T000000Z-aaaa", "tolerance=none"), "20260101T000000Z-aaaa"),
        (("qnnsweep", "repair", "model=m"), None),
    ],
)
def test_the_panel_of_files_has_the_command_that_compares_again(command: tuple[str, ...], run: str | None) -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0))
    html = render(replace(RUN, command=command), sweep([row]), {})
    assert re.findall("qnnsweep recompare --run=(.*?) ", html[html.index("<article") :]) == ([run] if run else [])


@pytest.mark.parametrize(
    ("tables", "option"), [("artifacts/tables", ""), ("/data/my runs/tables", " artifacts=&#39;/data/my runs&#39;")]
)
def test_the_commands_name_the_folder_of_the_artifacts_if_it_is_not_the_default(tables: str, option: str) -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0))
    html = render(replace(RUN, tables=tables), sweep([row]), {})
    name = f"{RUN.run_id} m/s/c/qnn/local aten_convolution_default_21"
    assert f"<code>qnnsweep tensors {name}{option}</code>" in html
    assert f'data-artifacts="{option}"' in html


def test_the_panel_of_files_links_only_files_that_the_cell_has() -> None:
    row = cell("m 1", "s", "c", **measured(random.Random(1), 30.0))
    for facts, count in (({}, 9), ({"debug_pte_bytes": None, "operators_compared": None}, 7)):
        html = render(RUN, sweep([row | facts]), {})
        links = re.findall('class="file" href="(.*?)">(.*?)</a>', html)
        file_names = [name if name != "all files" else "" for _, name in links]
        assert [link for link, _ in links] == [f"files/m%201/s/c/qnn/local/{name}" for name in file_names]
        assert len(links) == count
