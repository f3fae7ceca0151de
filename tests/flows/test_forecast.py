"""The forecast of a plan: which programs are stored, and how long the run takes, from the tables of earlier runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.flows.forecast import Forecast, forecast
from qnnsweep.tasks.results.digests import input_digests
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
from qnnsweep.tasks.toolchain.source_digest import code_digest
from tests.sample_tables import cell, table

RUN = "20260101T220000Z-aaaa"
TIMES = {"export_s": 10.0, "quantize_s": 4.0, "edge_s": 6.0, "lower_s": 20.0, "execute_s": 30.0}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one run: digits_cnn in 8a8w for two SoCs, one of which the compiler refused."""
    store = Store.at(str(tmp_path / "artifacts"))
    store.check_writable()
    (request,) = (planned.request for planned in load(["model=digits_cnn", "scheme=8a8w", "soc=SM8650"]).cells)
    versions: dict[str, Any] = asdict(toolchain_of(request.toolchain, store)[2])
    digests: dict[str, Any] = asdict(input_digests(request, code_digest(request.model)))
    compiled = cell("digits_cnn", "8a8w", "SM8650") | TIMES | versions | digests
    refused = cell("digits_cnn", "8a8w", "SM8750", outcome="failed", stage="lower") | {"export_s": 99.0}
    work = [{"stage": "compare", "seconds": seconds, "toolchain": "default"} for seconds in (3.0, 5.0)]
    for name, rows in (("cells", [compiled, refused]), ("work", work)):
        tables.write(store, RUN, name, [row | {"run_id": RUN} for row in table(name, rows)])
    return store


def planned(store: Store, *overrides: str) -> Forecast | None:
    return forecast(load([f"artifacts={store.location}", "limits.parallel=2", *overrides]))


def test_an_equal_cell_is_only_executed_and_compared(store: Store) -> None:
    assert planned(store, "soc=SM8650") == Forecast(compiled=[True], unknown=0, seconds=34.0)


@pytest.mark.parametrize(
    ("override", "cells"),
    [("soc=SM8750,SM8550", 2), ("scheme.observer=HistogramObserver", 1), ("model.calibration.count=9", 1)],
)
def test_a_cell_that_is_new_or_has_changed_takes_the_time_of_a_similar_one(
    store: Store, override: str, cells: int
) -> None:
    # The first execution begins after an export, a quantization and a lowering. A second cell is lowered meanwhile.
    seconds = 40.0 + 30.0 * cells + 4.0
    assert planned(store, override) == Forecast(compiled=[False] * cells, unknown=0, seconds=seconds)


def test_a_cell_that_was_measured_costs_nothing_with_reuse_capture(store: Store) -> None:
    assert planned(store, "soc=SM8650", "reuse=capture") == Forecast(compiled=[True], unknown=0, seconds=0.0)


def test_without_a_similar_cell_there_is_no_estimate(store: Store) -> None:
    expected = planned(store, "soc=SM8650,SM8350", "scheme=8a8w,fp16")
    assert expected == Forecast(compiled=[True, False, False, False], unknown=1, seconds=None)


def test_without_a_run_there_is_no_forecast(tmp_path: Path) -> None:
    assert forecast(load([f"artifacts={tmp_path}/none"])) is None
    assert not list(tmp_path.iterdir())
