"""A sweep cut for many machines, before any machine has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.distribution.shard import not_started
from flows.distribution.spread import split
from tasks.errors import EnvironmentUnusable, RequestError
from tasks.results.rows import rows


def test_it_is_cut_by_model_and_scheme_and_what_is_named_twice_is_one_shard(tmp_path: Path) -> None:
    asked = ["scheme=8a8w,fp16,8a8w", "soc=SM8350,SM8650", f"artifacts={tmp_path}"]
    whole, parts = split(asked, [])
    assert [(part.number, part.overrides[-1]) for part in parts] == [(0, "scheme=8a8w"), (1, "scheme=fp16")]
    assert [cell for part in parts for cell in part.plan.cells] == list(whole.cells)
    assert len(whole.cells) == 4


def test_a_place_that_is_another_one_on_every_host_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        split(["artifacts=artifacts"], [])
    assert str(refused.value) == (
        "artifacts=artifacts: workers of a pool need one place for all: s3://BUCKET/FOLDER, or the absolute path of a "
        "folder that every host has"
    )


def test_a_shard_that_never_ended_gives_each_of_its_cells_a_row_that_says_so(tmp_path: Path) -> None:
    plan, _ = split(["scheme=fp16", "soc=SM8350,SM8650", f"artifacts={tmp_path}"], [])
    made = rows("20261121T220000Z-a1b2", not_started(plan, EnvironmentUnusable("its worker died")), None)
    told = [
        {name: row[name] for name in ("soc", "outcome", "stage", "error_type", "error", "torch")}
        for row in made["cells"]
    ]
    nothing = {"stage": None, "torch": None}
    assert told == [
        {"soc": "SM8350", "outcome": "impossible", "error_type": None, "error": None} | nothing,
        {"soc": "SM8650", "outcome": "infrastructure", "error_type": "EnvironmentUnusable", "error": "its worker died"}
        | nothing,
    ]
    assert all(not found for table, found in made.items() if table != "cells")
