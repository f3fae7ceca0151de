"""What is counted of a run. All places that show it show these counts: terminal, report, Prefect, JSON, JUnit, HUD.

What regresses is a cell, however many of its series, operators and steps are worse.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qnnsweep.tasks.numerics.trend import BAD
from qnnsweep.tasks.records.tables import CELL_COLUMNS, Row
from qnnsweep.tasks.report.format import OUTCOMES, plural, words

_CELL = CELL_COLUMNS[1:]
Key = tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    cells: int
    outcomes: Mapping[str, int]
    """The number of cells per outcome, without 0: known outcomes, worst first, then others."""
    regressed: Mapping[Key, Sequence[Row]]
    """The rows of `trends` that are worse, of every cell of which one became worse in this run, by `cell_key`."""
    still_bad: Mapping[Key, Sequence[Row]]
    """The same of every cell whose worse rows became worse in an earlier run."""

    @property
    def possible(self) -> int:
        return self.cells - self.outcomes.get("impossible", 0)

    @property
    def not_passed(self) -> int:
        return self.possible - self.outcomes.get("passed", 0)

    def outcomes_in_words(self) -> list[str]:
        return [f"{number:,} {words(outcome)}" for outcome, number in self.outcomes.items()]

    def in_words(self) -> list[str]:
        """Return all counts: the outcomes, and the regressions."""
        return [*self.outcomes_in_words(), *filter(None, [self.regressions_in_words()])]

    def problems_in_words(self) -> list[str]:
        """Return the outcomes that are problems, as in `4 of 6 failed`, and the regressions."""
        bad = [outcome for outcome in self.outcomes if outcome not in ("passed", "impossible")]
        of_all = f"of {self.possible:,}" + (" possible" if self.possible < self.cells else "")
        problems = [f"{self.outcomes[outcome]:,} {of_all} {words(outcome)}" for outcome in bad]
        return [*problems, *filter(None, [self.regressions_in_words()])]

    def regressions_in_words(self) -> str:
        """Return for example `1 of 2 cells regressed, 1 worse since an earlier run`; nothing if no cell is worse."""
        of_all = f" of {self.cells_in_words()}"
        new = f"{len(self.regressed):,}{of_all} regressed" if self.regressed else ""
        old = f"{len(self.still_bad):,}{'' if new else of_all} worse since an earlier run" if self.still_bad else ""
        return ", ".join(filter(None, (new, old)))

    def cells_in_words(self) -> str:
        return plural(self.possible, "possible cell" if self.possible < self.cells else "cell")


def count(cells: Sequence[Row], trends: Sequence[Row]) -> Counts:
    """Count a run's rows of `cells` and of `trends`."""
    found = Counter(row["outcome"] for row in cells)
    known = {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}
    worse: dict[Key, list[Row]] = defaultdict(list)
    for row in trends:
        if row["verdict"] in BAD:
            worse[cell_key(row)].append(row)
    new = {key for key, rows in worse.items() if any(row["verdict"] == "regressed" for row in rows)}
    return Counts(
        cells=len(cells),
        outcomes=known | found,
        regressed={key: rows for key, rows in worse.items() if key in new},
        still_bad={key: rows for key, rows in worse.items() if key not in new},
    )


def cell_key(row: Row) -> Key:
    """Return what identifies a row's cell within its run."""
    return tuple(row[name] for name in _CELL)
