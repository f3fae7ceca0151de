"""Tests the ladder of a cell's final outputs, and the choice of the worst output."""

from __future__ import annotations

import math
from typing import Any

from qnnsweep.tasks.report.ladder import ladders, worst_output


def output(rung: str, snr_db: float | None, **facts: Any) -> dict[str, Any]:
    row = {"rung": rung, "output": "logits", "output_index": 0, "sample_name": "a", "status": "compared"}
    row |= {"why": None, "previous_rung": None, "previous_status": None, "previous_snr_db": None, "max_abs": None}
    return row | {"snr_db": snr_db, "top1_reference": 1, "top1_actual": 1} | facts


def test_a_rung_has_the_lowest_and_the_median_snr_of_its_samples() -> None:
    rows = [output("device", 30.0, sample_name="b", max_abs=0.5), output("device", 20.0, top1_actual=2)]
    (step,) = ladders([*rows, output("device", 23.0)])["logits"]
    assert (step["lowest_snr_db"], step["median_snr_db"], step["worst_sample"]) == (20.0, 23.0, "a")
    assert (step["max_abs"], step["top1_same"], step["top1_of"]) == (0.5, 2, 3)


def test_the_rungs_are_in_the_order_of_the_path_and_the_rung_beside_it_is_last() -> None:
    rungs = ["quantized", "device", "edge", "exported", "designed"]
    steps = ladders([output(rung, 20.0) for rung in rungs])["logits"]
    assert [step["rung"] for step in steps] == ["exported", "edge", "designed", "device", "quantized"]


def test_every_final_output_has_a_ladder_of_its_own() -> None:
    steps = ladders([output("device", 20.0), output("device", 30.0, output="boxes")])
    assert {name: [step["lowest_snr_db"] for step in ladder] for name, ladder in steps.items()} == {
        "logits": [20.0],
        "boxes": [30.0],
    }


def test_equal_outputs_are_at_infinity_and_a_rung_without_a_value_has_no_number() -> None:
    steps = ladders([output("exported", None, status="exact"), output("designed", None, status="no_value", why="no")])
    assert [(step["lowest_snr_db"], step["why"]) for step in steps["logits"]] == [(math.inf, None), (None, "no")]


def test_the_worst_output_is_that_with_the_most_noise_on_the_device() -> None:
    rows = [output("device", 30.0), output("device", 20.0, output_index=1), output("edge", 5.0)]
    assert worst_output(rows) == 1
    assert worst_output([*rows, output("device", None, output_index=2)]) == 2
    assert worst_output([]) is None
