"""What a run says got worse, in the terminal and in Prefect."""

from __future__ import annotations

import pandas
import pytest
from rich.console import Console

from flows.runs.regressions import count, regressions_markdown, regressions_table
from tasks.storage import tables
from tasks.storage.store import Store

from .nights import run_of
from .test_history import judged


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[int, pandas.DataFrame]:
    """The table `trends` of each night: a smaller SNR after the third, with another SDK, and a larger program later."""
    root = tmp_path_factory.mktemp("artifacts")
    worse = {"final_snr_db": 25.0, "qnn": "v2.50.1"}
    judged(root, [*[{"final_snr_db": 30.0}] * 3, worse, worse | {"pte_bytes": 2_000_000}])
    return {night: tables.read(Store.open(root), "trends", run_of(night)) for night in range(5)}


def test_a_run_in_which_nothing_is_worse_says_nothing(told: dict[int, pandas.DataFrame]) -> None:
    assert (count(told[2]), regressions_table(told[2]), regressions_markdown(told[2])) == (0, None, "")


def test_the_terminal_shows_what_is_worse_since_when_and_what_changed_then(told: dict[int, pandas.DataFrame]) -> None:
    console = Console(width=160, no_color=True)
    with console.capture() as shown:
        console.print(regressions_table(told[4]))
    lines = [" ".join(line.split()) for line in shown.get().splitlines() if line.strip() and "─" not in line]
    assert lines == [
        "1 regression, 1 from before",
        "cell worse is was since changed then",
        f"toy · 8a8w · SM8650 · phone pte_bytes 2,000,000 bytes 70,000 bytes {run_of(4)} nothing known",
        f"toy · 8a8w · SM8650 · phone final_snr_db 25 dB 30 dB {run_of(3)} qnn v2.49.40 -> v2.50.1",
    ]


def test_markdown_says_the_same(told: dict[int, pandas.DataFrame]) -> None:
    assert count(told[4]) == 1
    lines = regressions_markdown(told[4]).splitlines()
    assert lines[0] == "## 1 regression, 1 from before"
    assert lines[-1] == (
        rf"| toy · 8a8w · SM8650 · phone | final\_snr\_db | 25 dB | 30 dB | {run_of(3)} | qnn v2.49.40 -\> v2.50.1 |"
    )
