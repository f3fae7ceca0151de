"""What `qnnsweep run hydra/sweeper=optuna` shows. Heavy libraries are imported after the request is checked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.conf.sweeper import Search
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.foreground import run_on_this_machine
from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.flows.cells.graph import ProgressCallback
    from qnnsweep.flows.search import SearchResult, Trial


def search_here(search: Search, words: Words) -> Output:
    """Run the flow `search`, and return its trials, the best of which are marked."""
    from qnnsweep.conf.masking import mask_secrets

    configure_prefect()
    from qnnsweep.flows.search import first_plan, run_search
    from qnnsweep.flows.search import search as flow

    plan = first_plan(search, words.config_dirs)
    masked = mask_secrets(words.overrides, plan.masked_names)

    def start(on_progress: "ProgressCallback") -> "SearchResult":
        from qnnsweep.flows.runs.flow_state import returned
        from qnnsweep.flows.session import command

        screen, line = Console(stderr=True), command(masked, words.folders)
        body = flow.with_body(
            lambda: run_search(
                search, plan, line, on_progress, lambda trial: screen.print(_line(search, trial), soft_wrap=True)
            )
        )
        return returned(body, masked, list(map(str, words.folders)))

    result = run_on_this_machine(plan, start)
    return _output(result)


def _line(search: Search, trial: "Trial") -> Text:
    """Return what the terminal shows about a trial that has ended."""
    values = ", ".join(f"{name} {value}" for name, value in _shown(search, trial).items()) or trial.problem
    return Text(f"trial {trial.number}  {' '.join(trial.overrides)}: {values}")


def _shown(search: Search, trial: "Trial") -> Mapping[str, str]:
    return {name: f"{value:.6g}" for name, value in zip(search.objectives, trial.objectives or (), strict=False)}


def _output(result: "SearchResult") -> Output:
    from qnnsweep.tasks.report.format import plain_table

    search, facts = result.search, result.run.run
    table = plain_table("trial", "overrides", *search.objectives, "", right=("trial", *search.objectives))
    trials: list[dict[str, Any]] = []
    for trial in result.trials:
        is_best, values = trial.number in result.best, _shown(search, trial)
        note = "best" if is_best else trial.problem or ""
        cells = (values.get(name, "–") for name in search.objectives)
        table.add_row(str(trial.number), *map(Text, (" ".join(trial.overrides), *cells, note)))
        objectives = dict(zip(search.objectives, trial.objectives or (), strict=False))
        trials.append(
            {
                "trial": trial.number,
                "overrides": list(trial.overrides),
                "objectives": objectives,
                "problem": trial.problem,
                "best": is_best,
            }
        )
    lines = (
        f"{facts.seconds:.0f} s, {facts.toolchain_calls} toolchain calls, {facts.reused} results reused\n"
        f"report {facts.report}"
    )
    return Output(
        contents={"run_id": facts.run_id, "trials": trials, "report": facts.report},
        schema="search",
        parts=[table, lines],
        with_json=True,
        exit_code=PASSED if result.best else NOT_ALL_PASSED,
    )
