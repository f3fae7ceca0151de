"""What a run found, for Python: its tables as data frames, its culprit, its sentences and its pages."""

import io
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from qnnsweep.flows.runs.culprit import Culprit, culprit
from qnnsweep.flows.runs.names import find_cell
from qnnsweep.flows.runs.results import read_facts, rerender
from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.cell_folder import folder_of
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.report.counts import cell_key
from qnnsweep.tasks.report.format import note_and_diagnosis, with_places, words
from qnnsweep.tasks.report.notebook import run_in_notebook
from qnnsweep.tasks.report.terminal import summary_diagnoses, summary_table
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from qnnsweep.tasks.toolchain.simulator import Simulator

PathLike = str | os.PathLike[str]
_WIDTH = 120


class Run:
    """A run of one or several cells. A notebook shows its sentences and its error budget, a terminal its summary."""

    remarks: tuple[str, ...] = ()
    """What was decided about the model and its samples, one sentence each."""

    def __init__(self, run_id: str, artifacts: PathLike = "artifacts") -> None:
        """Raises RequestError if there is no such run. `artifacts`: the folder of the store."""
        self._store = Store.at(str(artifacts))
        self.run_id = run_id
        self.artifacts = str(artifacts)
        self._cells = tables.rows(self._store, "cells", run_id)

    @cached_property
    def _rows(self) -> list[Row]:
        """The rows of the table `cells`, whose sentences have commands that can be typed."""
        return with_places(self._cells, self.facts)

    @cached_property
    def facts(self) -> RunFacts:
        """When the run started, how long it took, its command line and its toolchain."""
        return read_facts(self.run_id, self._store)

    def table(self, name: str) -> "pd.DataFrame":
        """Return a table of the run, such as `modules` or `profile`; docs/tables.md has all tables and columns.

        Raises RequestError for a table that does not exist.
        """
        return tables.frame(self._store, name, self.run_id)

    @property
    def cells(self) -> "pd.DataFrame":
        """One row per cell: its outcome, its sentence, its worst SNR, sizes and digests."""
        return self.table("cells")

    @property
    def operators(self) -> "pd.DataFrame":
        """One row per operator and captured sample: how far the device is from the reference, and why."""
        return self.table("operators")

    @property
    def outputs(self) -> "pd.DataFrame":
        """One row per final output, sample and rung."""
        return self.table("outputs")

    @property
    def budget(self) -> "pd.DataFrame":
        """One row per final output, cause and operator: the shares of the output's error."""
        return self.table("budget")

    @property
    def passed(self) -> bool:
        """Whether every cell that is possible passed."""
        return all(row["outcome"] in ("passed", "impossible") for row in self._rows)

    @property
    def sentence(self) -> str:
        """The sentence of the worst cell: why it failed, what costs its accuracy, and what to type next."""
        return note_and_diagnosis({**self._worst, "measured_run": None})

    @property
    def worst_snr_db(self) -> float | None:
        """The lowest SNR of all final outputs and samples of the worst cell, in dB; None if no finite one is known."""
        return self._worst["final_snr_db"]

    @cached_property
    def culprit(self) -> Culprit | None:
        """The culprit of the worst cell; None if nothing has an error that matters."""
        return self.culprit_of(folder_of(self._worst))

    def culprit_of(self, cell: str) -> Culprit | None:
        """Return the culprit of a cell, such as `MODEL/SCHEME/SOC`. Raises RequestError if there is no such cell."""
        row = find_cell(self._store, self.run_id, cell)
        operators, budget = (tables.rows(self._store, table, self.run_id) for table in ("operators", "budget"))
        return culprit(row, operators, budget)

    def simulator(self, cell: str | None = None, method: str | None = None) -> "Simulator":
        """Return a method of a cell as the device is asked to compute it: a `torch.nn.Module` that takes any samples.

        cell: such as `MODEL/SCHEME/SOC`; by default the worst. method: by default the first. Raises RequestError for a
        cell that was not compiled, or that has no such method.
        """
        from qnnsweep.flows.simulate import lowered_program
        from qnnsweep.tasks.toolchain.simulation import chosen_methods
        from qnnsweep.tasks.toolchain.simulator import Simulator

        program = lowered_program(self._store, self.run_id, cell or folder_of(self._worst))
        return Simulator(chosen_methods(program, method)[0], self._store)

    def assert_ok(self, snr_db: float | None = None) -> None:
        """Raise AssertionError with the sentences of the cells that did not pass or have a lower SNR than `snr_db`.

        snr_db: in dB; with None, the tolerances of the run alone decide.
        """
        __tracebackhide__ = True
        problems = [problem for row in self._rows if (problem := _problem(row, snr_db)) is not None]
        if problems:
            raise AssertionError("\n".join([*problems, f"report {self.facts.report}"]))

    def report(self) -> Path:
        """Write the report of the run again, and return the path of the page."""
        return rerender(self._store, self.run_id).page

    def __repr__(self) -> str:
        text = io.StringIO()
        screen = Console(file=text, width=_WIDTH, force_jupyter=False, color_system=None)
        screen.print(summary_table(self.facts, self._rows))
        diagnoses = summary_diagnoses(self._rows)
        if diagnoses is not None:
            screen.print(diagnoses, crop=False)
        found = self.culprit
        cell = f" ({found.cell})" if found is not None and len(self._rows) > 1 else ""
        first = [] if found is None else [f"examine first: {found}{cell}"]
        return text.getvalue() + "\n".join([*first, f"report {self.facts.report}", *self.remarks])

    def _repr_html_(self) -> str:
        budget, first = self._of_cell("budget", self._worst), self.culprit
        culprit = None if first is None else str(first)
        return run_in_notebook(self.facts, self._rows, self._worst, budget, culprit, self.remarks)

    @property
    def _worst(self) -> Row:
        """The cell that did not pass, or else the one with the lowest SNR."""
        return min(self._rows, key=_goodness)

    def _of_cell(self, table: str, cell: Row) -> Sequence[Row]:
        return [row for row in tables.rows(self._store, table, self.run_id) if cell_key(row) == cell_key(cell)]


def _problem(cell: Row, least_snr_db: float | None) -> str | None:
    """Return why a cell is not good enough, with its sentence; None if it is."""
    outcome, snr_db = cell["outcome"], cell["final_snr_db"]
    is_low = least_snr_db is not None and snr_db is not None and snr_db < least_snr_db
    if outcome in ("passed", "impossible") and not is_low:
        return None
    why = f"{snr_db:.1f} dB is below {least_snr_db:g} dB" if is_low else words(outcome)
    names = " ".join(str(cell[name]) for name in ("model", "scheme", "soc"))
    return f"{names}: {why}\n{note_and_diagnosis(cell)}"


def _goodness(cell: Mapping[str, Any]) -> tuple[int, float]:
    order = ("failed", "infrastructure", "out_of_tolerance", "passed", "impossible")
    snr_db = cell["final_snr_db"]
    return order.index(cell["outcome"]), float("inf") if snr_db is None else float(snr_db)
