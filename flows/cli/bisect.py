"""The command `qnnsweep bisect`. Heavy libraries are imported only after the request has been parsed and checked."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from qnnsweep.conf.errors import DEVICES_UNUSABLE, NOT_ALL_PASSED, PASSED
from qnnsweep.conf.names import DEFAULT_ORACLE
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.completion import complete_bisect
from qnnsweep.flows.cli.foreground import with_progress
from qnnsweep.flows.cli.options import ConfigDirs
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.report.format import plural

if TYPE_CHECKING:
    from qnnsweep.flows.bisection.flow import BisectionResult
    from qnnsweep.flows.bisection.probes import Probe
    from qnnsweep.flows.cells.graph import ProgressCallback

EXITS = """
Exit codes: 0 the change was found · 1 both ends have the same answer · 2 the request is wrong, nothing ran · 3 this
machine lacks something · 4 an end could not be measured.
"""

Cells = Annotated[
    list[str],
    typer.Argument(
        metavar="BAD GOOD [OVERRIDE] | KEY=GOOD,…,BAD [OVERRIDE]",
        autocompletion=complete_bisect,
        help="Two cells, each as one word of overrides, such as 'scheme.observer=HistogramObserver model.seed=1' or '' "
        "for none, and then overrides of both. Or one key with several values, in order. Beside overrides, a cell can "
        "have the words of `qnnsweep toolchain add`, such as executorch=CLONE@COMMIT or passes_off=[FoldQDQ]. "
        "executorch=CLONE@GOOD..BAD means all commits between the two that changed the QNN backend.",
    ),
]
OracleText = Annotated[
    str,
    typer.Option(
        "--oracle",
        metavar="CONDITION",
        help="When a cell is bad: a column of the table cells, as in 'final_snr_db<30', or the introduced error or the "
        "share of one operator, as in 'aten_linear_default.introduced_snr_db<30' or 'aten_linear_default.share>0.5'.",
    ),
]


def bisect(shared: Words, words: Cells, oracle: OracleText = DEFAULT_ORACLE, config_dir: ConfigDirs = None) -> Output:
    """Search the change that makes a good cell bad, and certify it. Repeat the command to continue.

    Prints a page of Markdown with both sides, their digests and the commands that reproduce them.
    """
    configure_prefect()
    from qnnsweep.flows.bisection.page import markdown_page, summary, write_page
    from qnnsweep.flows.bisection.request import masked, parsed
    from qnnsweep.flows.cells.resources import prepare
    from qnnsweep.tasks.results.oracle import parsed_oracle

    folders, words = [folder.absolute() for folder in config_dir or ()], [*words, *shared.overrides]
    condition = parsed_oracle(oracle)
    bisection = parsed(words, folders)
    plan = bisection.good.plan(folders)
    resources = prepare(plan)  # report what this machine lacks before Prefect starts
    if bisection.good.toolchain is None:
        resources.workers.warm_up()
    masked_words = masked(words, plan.masked_names)

    def start(on_progress: "ProgressCallback") -> "BisectionResult":
        from qnnsweep.flows.bisection.flow import bisect as flow
        from qnnsweep.flows.bisection.flow import command_line, run_bisect
        from qnnsweep.flows.runs.flow_state import returned

        screen, line = Console(stderr=True), command_line(masked_words, folders, oracle)
        callbacks = (
            on_progress,
            lambda count: screen.print(f"{plural(count, 'toolchain')} to prepare or to use again"),
            lambda probe: screen.print(_line(probe), soft_wrap=True),
        )
        body = flow.with_body(lambda: run_bisect(bisection, plan, condition, line, *callbacks))
        return returned(body, masked_words, list(map(str, folders)), oracle)

    result = with_progress(plan.cells, start)
    page = write_page(result, resources.store)
    return Output(
        contents=summary(result) | {"page": page},
        parts=[markdown_page(result).removesuffix("\n")],
        notes=f"page {page}\nreport {result.run.run.report}",
        exit_code=PASSED if result.flips else DEVICES_UNUSABLE if result.is_undecided else NOT_ALL_PASSED,
    )


def _line(probe: "Probe") -> Text:
    """Return what the terminal shows about a probe that has ended."""
    judged = probe.judgement
    value = judged.why or judged.value
    style = {"bad": "red", "good": "green", "untestable": "yellow"}[judged.answer]
    return Text(f"probe {probe.number:<3} {probe.point.label}: {judged.answer}, {value}", style)
