"""The flow of one search, `hydra/sweeper=optuna`: Optuna chooses the overrides of every trial from its earlier trials.

A trial is an ordinary cell, so that a search that is repeated with the same seed compiles nothing. Needs the extra
`qnnsweep[optuna]`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from qnnsweep.conf.errors import did_you_mean, one_of
from qnnsweep.conf.load import load, load_search
from qnnsweep.conf.plan import Plan, PlannedCell
from qnnsweep.conf.schema import Reuse
from qnnsweep.conf.sweeper import Dimension, Search
from qnnsweep.flows.cells.graph import ProgressCallback
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.flows.session import Session, begin, command, no_progress
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.records.cell_rows import CellRow
from qnnsweep.tasks.records.tables import Row, columns
from qnnsweep.tasks.report.format import snr
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.repair_rows import renamed
from qnnsweep.tasks.results.rows import rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    number: int
    overrides: tuple[str, ...]
    """The overrides that the trial does not share with all others."""
    cell: CellResult | None
    """The cell, under a name that no other trial has; None if the overrides of the trial are refused."""
    objectives: tuple[float, ...] | None
    """None if an objective has no value."""
    problem: str | None
    """Why there are no objectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    run: SweepResult
    search: Search
    trials: Sequence[Trial]
    best: Sequence[int]
    """The numbers of the trials that no other trial excels in all objectives."""


def optuna() -> Any:
    """Return the module Optuna. Raises EnvironmentUnusable."""
    try:
        module: Any = import_module("optuna")
    except ImportError as error:
        raise EnvironmentUnusable(
            f"hydra/sweeper=optuna needs Optuna ({error})", remedy="pip install 'qnnsweep[optuna]'"
        ) from error
    module.logging.set_verbosity(module.logging.WARNING)
    return module


def first_plan(search: Search, folders: Sequence[Path]) -> Plan:
    """Check a search, and return the plan of a first trial. Raises RequestError and EnvironmentUnusable."""
    optuna()
    known = [column.name for column in columns(CellRow) if column.kind in (int, float, bool)]
    for objective in search.objectives:
        if objective not in known:
            problem = f"no column of numbers of the table cells; {did_you_mean(objective, known)}{one_of(known)}"
            raise RequestError(problem, key="hydra.sweeper.objective", value=objective)
    words = [
        dimension.choices[0] if dimension.choices else _number(dimension, dimension.low) for dimension in search.space
    ]
    return _plan(search, words, folders)


def run_search(
    search: Search,
    plan: Plan,
    line: Sequence[str],
    on_progress: ProgressCallback = no_progress,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
) -> SearchResult:
    """Search the best overrides. `plan`: that of `first_plan`; see also `run_sweep`. `on_trial`: gets every trial."""
    study, trials = _study(search), dict[int, Trial]()
    first = len(study.trials)
    with begin(plan, line, on_progress, verb="search") as session:
        while len(trials) < search.trials:
            asked = [study.ask() for _ in range(min(search.at_once, search.trials - len(trials)))]
            words = [tuple(_suggested(trial, dimension) for dimension in search.space) for trial in asked]
            for trial, measured in zip(asked, _measured(search, session, words, trials, plan.folders), strict=True):
                trials[measured.number] = measured
                state = None if measured.objectives else optuna().trial.TrialState.FAIL
                study.tell(trial, measured.objectives, state=state)
                on_trial(measured)
        refused = [trial.problem for trial in trials.values() if trial.cell is None]
        if len(refused) == len(trials):
            raise RequestError(f"every trial is refused: {refused[0]}")
        cells = {id(trial.cell): trial.cell for trial in trials.values() if trial.cell is not None}
        result = session.finish([*cells.values()])
    best = [trial.number - first for trial in study.best_trials] if any(t.objectives for t in trials.values()) else []
    return SearchResult(run=result, search=search, trials=[*trials.values()], best=[n for n in best if n >= 0])


@run_flow()
def search(overrides: list[str], config_dirs: list[str] | None = None) -> SearchResult:
    """Search the best overrides. `overrides`: as in `qnnsweep.flows.sweep.sweep`, with `hydra/sweeper=optuna`."""
    folders = [Path(folder) for folder in config_dirs or ()]
    if (request := load_search(overrides, config_dirs=folders)) is None:
        raise RequestError("a search needs hydra/sweeper=optuna")
    return run_search(request, first_plan(request, folders), command(overrides, folders))


def _study(search: Search) -> Any:
    """Return the study, with its earlier trials if it is stored. Raises RequestError for a wrong argument."""
    module = optuna()
    samplers = {"tpe": "TPESampler", "random": "RandomSampler", "nsgaii": "NSGAIISampler"}
    try:
        sampler = getattr(module.samplers, samplers[search.sampler])(**search.sampler_arguments)
    except (TypeError, ValueError) as error:
        raise RequestError(str(error), key="hydra.sweeper.sampler") from error
    return module.create_study(
        study_name=search.study_name,
        storage=search.storage,
        sampler=sampler,
        directions=[*search.objectives.values()],
        load_if_exists=True,
    )


def _suggested(trial: Any, dimension: Dimension) -> str:
    """Return the override of a dimension that Optuna suggests."""
    if dimension.choices:
        return trial.suggest_categorical(dimension.key, dimension.choices)
    limits: Mapping[str, Any] = {"low": dimension.low, "high": dimension.high, "log": dimension.is_log}
    if isinstance(dimension.low, int) and isinstance(dimension.high, int):
        return _number(dimension, trial.suggest_int(dimension.key, step=int(dimension.step or 1), **limits))
    return _number(dimension, trial.suggest_float(dimension.key, step=dimension.step, **limits))


def _number(dimension: Dimension, number: float) -> str:
    return f"{dimension.key}={number!r}"


def _plan(search: Search, words: Sequence[str], folders: Sequence[Path]) -> Plan:
    return load([*search.fixed, *words], config_dirs=folders, of_trial=True)


def _measured(
    search: Search,
    session: Session,
    words: Sequence[tuple[str, ...]],
    trials: Mapping[int, Trial],
    folders: Sequence[Path],
) -> Iterator[Trial]:
    """Measure the trials with these overrides together, except those that have been measured already."""
    known = {trial.overrides: trial for trial in trials.values()}
    planned: dict[tuple[str, ...], PlannedCell | RequestError] = {}
    for overrides in words:
        if overrides not in known and overrides not in planned:
            try:
                (cell,) = _plan(search, overrides, folders).cells
                planned[overrides] = replace(cell, request=replace(cell.request, reuse=Reuse.capture))
            except RequestError as error:
                planned[overrides] = error
    cells = [cell for cell in planned.values() if isinstance(cell, PlannedCell)]
    results = iter(session.measure(cells) if cells else ())
    names = {trial.cell.request.names for trial in trials.values() if trial.cell is not None}
    for number, overrides in enumerate(words, start=len(trials)):
        if overrides in planned:
            cell = planned.pop(overrides)
            result = next(results) if isinstance(cell, PlannedCell) else cell
            if isinstance(result, CellResult):
                if result.request.names in names:
                    result = renamed(result, f"{result.request.scheme.name} trial {number}")
                names.add(result.request.names)
            known[overrides] = _judged(search, number, overrides, result, session.run_id)
        yield replace(known[overrides], number=number)


def _judged(
    search: Search, number: int, overrides: tuple[str, ...], result: CellResult | RequestError, run_id: str
) -> Trial:
    if isinstance(result, RequestError):
        return Trial(number=number, overrides=overrides, cell=None, objectives=None, problem=str(result))
    (row,) = rows(run_id, [result], None)["cells"]
    values = {objective: _value(row, objective) for objective in search.objectives}
    missing = [objective for objective, value in values.items() if value is None]
    problem = f"no {', '.join(missing)}: {row['error'] or row['reason'] or row['outcome']}" if missing else None
    numbers = tuple(float(value) for value in values.values() if value is not None)
    return Trial(
        number=number, overrides=overrides, cell=result, objectives=None if missing else numbers, problem=problem
    )


def _value(row: Row, objective: str) -> float | None:
    """Return the value of a column. The SNR of outputs without an error is infinite, and null in the table."""
    return snr(row["final_difference"], row[objective]) if objective == "final_snr_db" else row[objective]
