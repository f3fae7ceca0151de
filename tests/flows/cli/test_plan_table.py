"""The plan of a sweep, and the differences of two runs, in terminals of several widths."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from qnnsweep.flows.cli.plan_table import forecast_line, plan_table
from qnnsweep.flows.forecasts.costs import Forecast
from qnnsweep.flows.runs.diff import CellDifference, Change, Difference, diff_table

GOLDENS = Path(__file__).parents[2] / "goldens" / "terminal"
WIDTHS = (60, 80, 120)
LONG = "a_model_with_a_name_of_forty_four_characters"


def planned(width: int) -> str:
    axes = {"toolchain": "default", "backend": "qnn", "device": "local", "impossible": None, "compiled": False}
    cells = [
        axes | {"model": "digits_cnn", "scheme": "8a8w", "soc": "SM8550", "compiled": True},
        axes | {"model": LONG, "scheme": "16a4w_block", "soc": "SM8650"},
        axes | {"model": "digits_cnn", "scheme": "fp16", "soc": "SM8350"}
        | {"impossible": "Hexagon v68 computes no 16-bit float; v69 or newer does"},
    ]  # fmt: skip
    expected = Forecast(compiled=[True, False, False], unknown=0, seconds=187.0)
    return lines(width, plan_table(cells, expected), forecast_line(expected))


def differing(width: int) -> str:
    def names(model: str, soc: str) -> dict[str, str | None]:
        where = {"device": "local", "farm": None, "backend": "qnn", "toolchain": "default"}
        return {"model": model, "scheme": "8a8w", "soc": soc, **where}

    worse = Change(what="final_snr_db", unit="dB", before=31.0, after=21.5, limit=1.0, verdict="regressed")
    better = replace(worse, what="total_snr_db", operator="aten_convolution_default_35", after=55.0, verdict="improved")
    changed = ["model", "executorch 1.5.0 -> 1.5.1"]
    pair = CellDifference(cell=names("digits_cnn", "SM8650"), changed=changed, changes=[worse, better])
    return lines(
        width,
        diff_table(
            Difference(
                run_a="20260101T220000Z-aaaa",
                run_b="20260102T220000Z-bbbb",
                cells=[pair],
                only_in_a=[names(LONG, "SM8550")],
                only_in_b=[],
            )
        ),
    )


def lines(width: int, *parts: object) -> str:
    written = io.StringIO()
    Console(file=written, width=width).print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_the_plan_and_the_differences_are_the_goldens_of_their_width(width: int) -> None:
    for name, text in (("plan", planned(width)), ("diff", differing(width))):
        assert text == (GOLDENS / f"{name}_{width}.txt").read_text(), "run `python -m tests.flows.cli.test_plan_table`"
        assert [line for line in text.splitlines() if len(line) > width] == []


if __name__ == "__main__":
    for columns in WIDTHS:
        (GOLDENS / f"plan_{columns}.txt").write_text(planned(columns))
        (GOLDENS / f"diff_{columns}.txt").write_text(differing(columns))
