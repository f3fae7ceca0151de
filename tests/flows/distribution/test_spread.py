"""The shards of a sweep, and the rows of shards that did not complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.flows.distribution.shard import not_started
from qnnsweep.flows.distribution.spread import split
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.results.rows import rows


def test_a_sweep_is_split_by_model_and_scheme_and_a_shard_that_is_named_twice_is_one_shard(tmp_path: Path) -> None:
    overrides = ["scheme=8a8w,fp16,8a8w", "soc=SM8350,SM8650", f"artifacts={tmp_path}"]
    plan, parts = split(overrides, [])
    assert [(part.number, part.overrides[-1]) for part in parts] == [(0, "scheme=8a8w"), (1, "scheme=fp16")]
    assert [cell for part in parts for cell in part.plan.cells] == list(plan.cells)
    assert len(plan.cells) == 4


def test_a_relative_artifacts_folder_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        split(["artifacts=artifacts"], [])
    assert str(refused.value) == (
        "artifacts=artifacts: all workers of a pool need the same location: s3://BUCKET/FOLDER, or the absolute path "
        "of a folder that every host has"
    )


def test_every_cell_of_a_shard_that_did_not_complete_has_a_row_with_the_reason(tmp_path: Path) -> None:
    plan, _ = split(["scheme=fp16", "soc=SM8350,SM8650", f"artifacts={tmp_path}"], [])
    contents = rows("20261121T220000Z-a1b2", not_started(plan, EnvironmentUnusable("its worker died")), None)
    cells = [
        {name: row[name] for name in ("soc", "outcome", "stage", "error_type", "error", "torch")}
        for row in contents["cells"]
    ]
    empty = {"stage": None, "torch": None}
    assert cells == [
        {"soc": "SM8350", "outcome": "impossible", "error_type": None, "error": None} | empty,
        {"soc": "SM8650", "outcome": "infrastructure", "error_type": "EnvironmentUnusable", "error": "its worker died"}
        | empty,
    ]
    assert all(not table_rows for table, table_rows in contents.items() if table != "cells")
