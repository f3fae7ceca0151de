"""The command `qnnsweep qualify`. Heavy libraries are imported only after the request has been parsed and checked."""

from dataclasses import asdict
from typing import Annotated

import typer

from qnnsweep.conf.errors import DEVICES_UNUSABLE, NOT_ALL_PASSED, PASSED
from qnnsweep.conf.toolchains import NAME_FORM, is_toolchain_name
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.flows.cli.completion import complete_toolchain
from qnnsweep.flows.cli.foreground import has_failed, sweep_here
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.errors import RequestError

EXITS = """
Exit codes: 0 nothing got worse · 1 something got worse · 2 the request is wrong, nothing ran · 3 this machine lacks
something · 4 a cell could not be measured.
"""
_DEFAULT_OVERRIDES = ("experiment=quickstart",)

Toolchain = Annotated[
    str, typer.Argument(metavar="A", help="The present toolchain, such as default.", autocompletion=complete_toolchain)
]
Candidate = Annotated[
    str, typer.Argument(metavar="B", help="The toolchain to qualify.", autocompletion=complete_toolchain)
]


def qualify(words: Words, before: Toolchain, after: Candidate) -> Output:
    """Compare a toolchain with the present one, on all cells of a sweep. Repeat the command to continue.

    Prints Markdown for a pull request. Without overrides, the cells are those of experiment=quickstart. Cells that a
    limit of the compiler makes impossible are tried, too; try_impossible=false leaves them out.
    """
    overrides = _overrides(before, after, words.overrides)
    configure_prefect()
    from qnnsweep.conf.impossible import compiler_limit
    from qnnsweep.conf.load import load
    from qnnsweep.flows.runs.qualification import RULED_AXES
    from qnnsweep.flows.runs.qualification import qualify as compare_toolchains
    from qnnsweep.flows.runs.qualification_page import markdown_page, write_page
    from qnnsweep.tasks.storage.store import Store

    plan = load(overrides, config_dirs=words.config_dirs)
    result = sweep_here(plan, words, overrides)
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    tried = [cell.request for cell in plan.cells if cell.impossible is None]
    reasons = ((request.names[: len(RULED_AXES)], compiler_limit(request)) for request in tried)
    excluded = {names: reason for names, reason in reasons if reason is not None}
    qualification = compare_toolchains(store, result.run.run_id, before, after, excluded)
    page, passed = write_page(qualification, store), qualification.passed and not has_failed(plan, result)
    return Output(
        contents=asdict(qualification) | {"passed": qualification.passed, "page": page, "report": result.run.report},
        parts=[markdown_page(qualification).removesuffix("\n")],
        notes=f"page {page}\nreport {result.run.report}",
        exit_code=DEVICES_UNUSABLE if qualification.unusable else PASSED if passed else NOT_ALL_PASSED,
    )


def _overrides(before: str, after: str, overrides: list[str]) -> list[str]:
    """Return the overrides of the sweep. Raises RequestError."""
    for argument, name in (("A", before), ("B", after)):
        if not is_toolchain_name(name):
            problem = f"no name of a toolchain: {NAME_FORM}; write `qnnsweep qualify A B`"
            raise RequestError(problem, key=argument, value=name)
    if before == after:
        raise RequestError("A and B are the same toolchain; `qnnsweep toolchain list` lists all", key="B", value=after)
    if any(word.lstrip("+~").partition("=")[0] == "toolchain" for word in overrides):
        raise RequestError("toolchain=: the toolchains are the arguments A and B; leave this override out")
    given = {word.lstrip("+~").partition("=")[0] for word in overrides}
    own = {"try_impossible": "true", "measure.cures": "0"}
    tried = [f"{key}={value}" for key, value in own.items() if key not in given]
    has_cells = any(not word.startswith("artifacts=") for word in overrides)
    return [*([] if has_cells else _DEFAULT_OVERRIDES), *overrides, *tried, f"toolchain={before},{after}"]
