"""The command `qnnsweep repair`. Heavy libraries are imported only after the request has been parsed and checked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.foreground import run_on_this_machine
from qnnsweep.flows.server.settings import configure_prefect

if TYPE_CHECKING:
    from qnnsweep.conf.repair import TargetConfig
    from qnnsweep.flows.cells.graph import ProgressCallback
    from qnnsweep.flows.repair import RepairResult
    from qnnsweep.tasks.records.repair_rows import CertificateRow
    from qnnsweep.tasks.results.repair import Measurement
    from qnnsweep.tasks.results.repair_search import Search, Step

EXITS = """
Exit codes: 0 the target is reached, on unseen samples too · 1 it is not, the best scheme is written ·
2 the request is wrong, nothing ran · 3 this machine lacks something · 4 devices unusable.
"""


def repair(words: Words) -> Output:
    """Search a scheme that reaches a target, and certify it on unseen samples. Repeat the command to continue.

    For example: model=minilm_l6 scheme=16a8w soc=SM8650 target.final_snr_db=30 budget.size_ratio=1.25
    """
    from qnnsweep.conf.masking import mask_secrets
    from qnnsweep.conf.repair_plan import planned

    plan = planned(words.overrides, words.config_dirs)
    masked = mask_secrets(words.overrides, plan.masked_names)
    configure_prefect()

    def start(on_progress: "ProgressCallback") -> "RepairResult":
        from qnnsweep.flows.repair import repair as flow
        from qnnsweep.flows.repair import run_repair
        from qnnsweep.flows.runs.flow_state import returned
        from qnnsweep.flows.session import command

        screen, line = Console(stderr=True), command(masked, words.folders, verb="repair")
        body = flow.with_body(
            lambda: run_repair(plan, line, on_progress, lambda step: screen.print(_line(step), soft_wrap=True))
        )
        return returned(body, masked, list(map(str, words.folders)))

    result = run_on_this_machine(plan, start)
    return Output(
        contents=_summary(result),
        parts=_shown(result),
        with_json=True,
        exit_code=PASSED if result.search.reached else NOT_ALL_PASSED,
    )


def _line(step: "Step") -> Text:
    """Return what the terminal shows about a step that has ended."""
    from qnnsweep.tasks.results.repair import lowest_snr_db

    candidate, measured = step.candidate, [side for side in step.measurements if side is not None]
    lowest = lowest_snr_db(measured) if measured else None
    now = f", now {lowest:.1f} dB" if lowest is not None else ""
    if candidate is None:
        return Text(f"step 0   the scheme before the repair{now}", "bold")
    gains = f"predicted {step.predicted_db:+.1f} dB, measured {_db(step.measured_db)}"
    verdict, style = ("accepted", "green") if step.accepted else ("reverted", "yellow")
    return Text(f"step {step.number:<3} {candidate.description}: {gains}{now}; {verdict}: {step.why}", style)


def _db(gain: float | None) -> str:
    if gain is None:
        return "nothing"
    return f"{gain:+.1f} dB" if math.isfinite(gain) else ("an exact output" if gain > 0 else "an infinite error")


def _shown(result: "RepairResult") -> list[RenderableType]:
    search, facts, files = result.search, result.run.run, result.recipe
    lines = (
        f"{'reached' if search.reached else 'not reached'}: {search.reason}\n"
        f"{facts.seconds:.0f} s, {facts.toolchain_calls} toolchain calls, {facts.reused} results reused\n"
        f"scheme {files.scheme_file}\nrecipe {files.recipe_file}\npage {files.page}\nreport {facts.report}"
    )
    return [_steps_table(search), _certificate_table(result.certificate), lines]


def _steps_table(search: "Search") -> Table:
    from qnnsweep.tasks.report.format import kib, plain_table
    from qnnsweep.tasks.results.repair import lowest_snr_db

    target = search.target
    further: dict[str, Callable[[Sequence[Measurement]], str]] = {}
    if target.metric is not None:
        further[target.metric] = lambda measured: _farthest(measured, target)
    if target.effective_bits is not None:
        further["bits per weight"] = lambda measured: f"{max(side.effective_bits or 0.0 for side in measured):.2f}"
    numbers = ("predicted dB", "measured dB", "lowest SNR dB", "pte KiB", *further)
    table = plain_table("step", "change", *numbers, "", right=("step", *numbers))
    for step in search.steps:
        candidate, measured = step.candidate, [side for side in step.measurements if side is not None]
        lowest = lowest_snr_db(measured) if measured else None
        table.add_row(
            str(step.number),
            Text(candidate.description if candidate else "the scheme before the repair"),
            f"{step.predicted_db:+.1f}" if step.predicted_db is not None else "",
            _db(step.measured_db).removesuffix(" dB") if candidate else "",
            "–" if lowest is None else f"{lowest:.1f}",
            kib(max(side.size_bytes for side in measured)) if measured else "–",
            *(number(measured) if measured else "–" for number in further.values()),
            Text("" if candidate is None else "✓ accepted" if step.accepted else f"✗ {step.why}"),
        )
    return table


def _farthest(measured: "Sequence[Measurement]", target: "TargetConfig") -> str:
    """Return the mean of the target's metric on the SoC where it is farthest from its limit."""
    from qnnsweep.tasks.report.format import real
    from qnnsweep.tasks.results.repair import metric_miss

    values = max(measured, key=lambda side: metric_miss(side, target)).metric
    return real(mean(values) if values else None)


def _certificate_table(rows: Sequence["CertificateRow"]) -> Table:
    from qnnsweep.tasks.report.format import interval, kib, percent, plain_table

    samples = rows[0].certificate_samples if rows else 0
    with_metric = any(row.metric is not None for row in rows)
    metric = ("metric",) if with_metric else ()
    columns = ("lowest SNR dB", "mean SNR dB", *metric, "top-1 %", "accuracy %", "pte KiB", "DRAM KiB", "cycles")
    title = f"certificate: {samples} samples that neither the calibration nor the search has used"
    table = plain_table("soc", "scheme", *columns, right=columns, title=title)
    for row in rows:
        final = row.finals
        table.add_row(
            row.cell.soc,
            row.side,
            _number(final.final_snr_db),
            _number(final.mean_snr_db) + interval(final.mean_snr_db_low, final.mean_snr_db_high),
            *([_metric(row)] if with_metric else []),
            percent(final.top1_agreement),
            percent(final.accuracy),
            kib(row.size_bytes),
            "–" if row.ddr_bytes is None else kib(row.ddr_bytes),
            "–" if row.cycles is None else f"{row.cycles:,.0f}",
        )
    return table


def _metric(row: "CertificateRow") -> str:
    from qnnsweep.tasks.report.format import real

    bounds = "" if row.metric_low is None else f" ({real(row.metric_low)} to {real(row.metric_high)})"
    return f"{real(row.metric)}{bounds}"


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.1f}"


def _summary(result: "RepairResult") -> dict[str, Any]:
    from qnnsweep.tasks.results.repair import lowest_snr_db

    search = result.search
    before, after = ([side for side in step.measurements if side] for step in (search.steps[0], search.accepted))
    sizes = [max((side.size_bytes for side in measured), default=None) for measured in (before, after)]
    certificate = [
        {"soc": row.cell.soc, "side": row.side, "samples": row.certificate_samples, **asdict(row.finals)}
        | {"metric": row.metric, "metric_low": row.metric_low, "metric_high": row.metric_high}
        for row in result.certificate
    ]
    return {
        "run_id": result.run.run.run_id,
        "reached": search.reached,
        "reason": search.reason,
        "before_snr_db": lowest_snr_db(before),
        "after_snr_db": lowest_snr_db(after),
        "changes": [step.candidate.description for step in search.changes if step.candidate],
        "compilations": search.steps[-1].compilations,
        "size_ratio": sizes[1] / sizes[0] if sizes[0] and sizes[1] else None,
        "scheme_file": result.recipe.scheme_file,
        "recipe_file": result.recipe.recipe_file,
        "page": result.recipe.page,
        "report": result.run.run.report,
        "certificate": certificate,
    }
