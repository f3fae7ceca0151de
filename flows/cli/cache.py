"""`qnnsweep cache`: shows the contents of the store, removes what is no longer needed, and checks files for damage."""

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from qnnsweep.conf.errors import NOT_ALL_PASSED, PASSED
from qnnsweep.conf.units import GIB, KIB, MIB, TIB
from qnnsweep.flows.cli.command import Output, Words, run_body
from qnnsweep.flows.cli.completion import complete_run
from qnnsweep.flows.cli.options import RUN_NAMES, Artifacts, Debug, Json, bytes_done
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.report.format import plain_table, plural

if TYPE_CHECKING:
    from qnnsweep.tasks.storage.integrity import Damage, Verification
    from qnnsweep.tasks.storage.inventory import Inventory
    from qnnsweep.tasks.storage.retention import PrunePlan
    from qnnsweep.tasks.storage.store import Store

_SIZES = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_TIMES = {"h": 3600, "d": 86_400, "w": 604_800}

_HELP = "Show the contents of the store by stage and by run; remove what is no longer needed; check for damage."

app = typer.Typer(help=_HELP)


@app.callback(invoke_without_command=True, help=_HELP)
def show(
    context: typer.Context,
    runs: Annotated[int, typer.Option("--runs", help="How many of the newest runs to show.", min=0)] = 10,
    json_: Json = False,
    debug: Debug = False,
    artifacts: Artifacts = "artifacts",
) -> None:
    if context.invoked_subcommand is None:
        run_body(show_contents, {"runs": runs, "json_": json_, "debug": debug, "artifacts": artifacts}, "cache")


def show_contents(words: Words, runs: int) -> Output:
    from qnnsweep.tasks.storage.inventory import inventory

    contents = inventory(_store(words.artifacts, writes=False), runs)
    return Output(contents=asdict(contents), parts=_tables(contents))


def prune(
    words: Words,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help=f"Remove this run: {RUN_NAMES}. Can be given several times.",
            autocompletion=complete_run,
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Remove runs that ended more than TIME ago: 30d, 12h, 8w."),
    ] = None,
    larger_than: Annotated[
        str | None,
        typer.Option(
            "--larger-than", metavar="SIZE", help="Remove the oldest runs until at most SIZE remains: 20GiB, 500MiB."
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            help="Keep the newest N runs. If no other option selects runs, remove all older runs.",
            min=0,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
) -> Output:
    """Remove runs, and the results and blobs that no remaining run needs. This is refused while a sweep is running.

    Without an option that selects runs, only the remains of killed sweeps are removed: incomplete runs, and results and
    blobs that are at least a day old.
    """
    from qnnsweep.flows.runs.names import resolve
    from qnnsweep.tasks.storage import lock
    from qnnsweep.tasks.storage.retention import Selection, apply, plan_prune

    by_rule = older_than is not None or larger_than is not None
    store = _store(words.artifacts, writes=not dry_run)
    selection = Selection(
        runs=tuple(dict.fromkeys(resolve(store, name) for name in run or ())),
        at_most=keep if not by_rule and not run else None,
        older_than_s=None if older_than is None else _parsed("--older-than", older_than, _TIMES),
        larger_than=None if larger_than is None else int(_parsed("--larger-than", larger_than, _SIZES)),
        protected=keep or 0,
    )
    if dry_run:
        plan = plan_prune(store, selection)
    else:
        with lock.exclusive(store):
            plan = plan_prune(store, selection)
            apply(store, plan)
    parts = [_summary(plan, dry_run=dry_run), _prune_table(plan, dry_run=dry_run)]
    return Output(contents=asdict(plan) | {"dry_run": dry_run}, parts=parts)


def verify(
    words: Words,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged files that can be computed again. Damaged tables stay.")
    ] = False,
) -> Output:
    """Check every blob, result, key, table and manifest for damage. The exit code is 1 if a file is damaged.

    With --repair, damaged blobs, results, keys and manifests are removed, so that they are computed again. This is
    refused while a sweep is running. The rows of a damaged table cannot be computed again: restore it from a copy, or
    remove it.
    """
    from qnnsweep.tasks.storage import lock
    from qnnsweep.tasks.storage.integrity import verify as verify_store

    store = _store(words.artifacts, writes=True)
    with (lock.exclusive if repair else lock.shared)(store), bytes_done("checking") as show:
        verification = verify_store(store, repair=repair, on_progress=show)
    return Output(
        contents={"artifacts": str(store.root), **asdict(verification)},
        parts=[*(_damage_line(damage, store) for damage in verification.damages), _verified(verification)],
        exit_code=NOT_ALL_PASSED if verification.damages else PASSED,
    )


def _damage_line(damage: "Damage", store: "Store") -> str:
    """Return a line with the kind of a damaged file, its path, its problem, and what was or can be done."""
    remedy = "its rows cannot be computed again" if damage.kind == "table" else "--repair removes it"
    links = f", which is also {', '.join(map(store.display_path, damage.links))}" if damage.links else ""
    line = f"{damage.kind} {store.display_path(damage.file)}{links}: {damage.problem}"
    return f"{line}; {'removed' if damage.repaired else remedy}"


def _verified(verification: "Verification") -> str:
    counts = ", ".join(plural(count, kind) for kind, count in verification.checked.items())
    removed = sum(damage.repaired for damage in verification.damages)
    line = f"{counts} checked, {_size(verification.bytes)}: {len(verification.damages) or 'none'} damaged"
    line += f", {removed} removed" if removed else ""
    return line + (f"; {verification.other_versions} of another version" if verification.other_versions else "")


def _store(artifacts: str, *, writes: bool) -> "Store":
    from qnnsweep.tasks.storage.store import Store

    store = Store.at(artifacts)
    if store.url:
        raise RequestError(
            f"--artifacts={artifacts}: must be a folder; for an object store use its own tools and lifecycle rules"
        )
    if not store.blobs.is_dir():
        raise RequestError(f"--artifacts={artifacts}: nothing is stored there; name the folder of a sweep")
    if writes:
        store.check_writable()
    return store


def _parsed(option: str, text: str, units: dict[str, int]) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)", text)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise RequestError(f"{option}={text}: must be a number followed by one of {known}")
    return float(match[1]) * units[match[2]]


def _summary(plan: "PrunePlan", *, dry_run: bool) -> str:
    verb = "would remove" if dry_run else "removing"
    runs = ", ".join(plan.runs) or "no run"
    line = f"{verb}: {runs}; {_size(plan.freed)} of {_size(plan.freed + plan.left)}"
    return "\n".join([line, *(f"no result and no blob is removed: {problem}" for problem in plan.unreadable)])


def _prune_table(plan: "PrunePlan", *, dry_run: bool) -> Table:
    table = plain_table("would be removed" if dry_run else "removed", "count", right=["count"])
    table.add_row("runs", str(len(plan.runs)))
    table.add_row("remains of killed runs", str(len(plan.remains)))
    table.add_row("results", str(len(plan.results)))
    table.add_row("blobs", str(len(plan.blobs)))
    table.add_row("freed", _size(plan.freed))
    table.add_row("left", _size(plan.left))
    return table


def _tables(contents: "Inventory") -> list[Table]:
    columns = ("results", "size", "blobs", "size", "shared", "oldest", "newest")
    stages = plain_table("stage", *columns, right=columns)
    for stage in contents.stages:
        stages.add_row(
            stage.stage, str(stage.results), _size(stage.result_bytes), str(stage.blobs), _size(stage.blob_bytes),
            _size(stage.shared_bytes), stage.oldest or "–", stage.newest or "–",
        )  # fmt: skip
    stages.caption = (
        f"{_size(contents.bytes)} in {contents.artifacts}; shared: the size of the blobs that an earlier stage counts"
    )
    columns = ("made", "reused", "blobs", "holds", "alone", "own files")
    runs = plain_table("run", *columns, right=columns)
    for run in contents.runs:
        runs.add_row(
            run.run_id, str(run.made), str(run.reused), str(run.blobs), _size(run.held_bytes), _size(run.alone_bytes),
            _size(run.own_bytes),
        )  # fmt: skip
    runs.caption = "alone: the size of the blobs that only this run references"
    return [stages, runs]


def _size(count: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= _SIZES[unit]:
            return f"{count / _SIZES[unit]:.1f} {unit}"
    return f"{count} B"
