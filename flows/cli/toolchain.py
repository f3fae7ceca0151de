"""`qnnsweep toolchain`: prepares, lists and removes other toolchains, for the key `toolchain`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN, toolchains_folder
from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.report.format import plain_table

if TYPE_CHECKING:
    from qnnsweep.tasks.toolchain.prepared.record import PreparedToolchain

_HELP = "Prepare, list and remove other QNN releases and commits of ExecuTorch: see docs/toolchains.md."
EXITS = "Exit codes: 0 done · 2 nothing was changed, and one line says why."

app = typer.Typer(help=_HELP, no_args_is_help=True)


def add(
    _: Words,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] KEY=VALUE",
            help="A name, by default one made of the values, and: qnn=2.51, qnn=onnxruntime-qnn==2.7.0 or qnn=PATH of "
            "a Qualcomm AI Engine Direct SDK; executorch=1.4.1 for another release of ExecuTorch, or CLONE@COMMIT for "
            "the QNN backend of a commit of a git clone; passes_off=[PASS,…]; operators_skipped=[OPERATOR,…].",
        ),
    ],
) -> Output:
    """Prepare a toolchain in a folder of its own, once. This Python environment is not changed.

    pip gets a release from the index that it is configured to use. About 250 MB are stored.
    """
    from qnnsweep.flows.cli.foreground import interruptible
    from qnnsweep.tasks.toolchain.prepared.prepare import add as prepare
    from qnnsweep.tasks.toolchain.prepared.wanted import parsed_words

    name, wanted = parsed_words(words)
    with interruptible(Console(stderr=True)):
        toolchain = prepare(name, wanted, os.environ)
    bridged = "" if toolchain.bridge is None else f", with the bridge `{toolchain.bridge}`"
    lines = [f"toolchain={toolchain.name}: QNN {toolchain.build} from {toolchain.origin}{bridged}"]
    lines += [toolchain.changes] if toolchain.changes else []
    lines += [f"unverified: no digest is known of {source}" for source in toolchain.unverified]
    lines += [] if toolchain.provisional is None else [f"provisional: {toolchain.provisional}"]
    return Output(contents=_summary(toolchain), parts=lines)


def list_(_: Words) -> Output:
    """List the toolchains that can be selected with toolchain=NAME."""
    from qnnsweep.tasks.toolchain.prepared.record import prepared_toolchains

    toolchains = [entry for entry in prepared_toolchains(os.environ) if not isinstance(entry, EnvironmentUnusable)]
    contents = {"folder": str(toolchains_folder(os.environ)), "toolchains": list(map(_summary, toolchains))}
    return Output(contents=contents, parts=[_table(toolchains)])


def remove(
    _: Words, name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a prepared toolchain.")]
) -> None:
    """Remove a prepared toolchain. Results of its cells stay in the store."""
    from qnnsweep.tasks.toolchain.prepared.prepare import remove as remove_toolchain

    remove_toolchain(name, os.environ)


def _summary(toolchain: "PreparedToolchain") -> dict[str, Any]:
    return {
        "name": toolchain.name,
        "folder": str(toolchain.folder),
        "qnn": toolchain.build,
        "origin": toolchain.origin,
        "executorch": toolchain.executorch,
        "bridge": toolchain.bridge,
        "release": toolchain.release,
        "commit": toolchain.commit,
        "passes_off": toolchain.passes_off,
        "operators_skipped": toolchain.operators_skipped,
        "unverified": toolchain.unverified,
        "provisional": toolchain.provisional,
        "digest": toolchain.digest,
        "probed": list(map(asdict, toolchain.probed)),
    }


def _table(toolchains: "Sequence[PreparedToolchain]") -> Table:
    table = plain_table("toolchain", "QNN", "from", "bridge", "note")
    table.add_row(DEFAULT_TOOLCHAIN, "", "this Python environment, or QNN_SDK_ROOT", "", "see `qnnsweep doctor`")
    for toolchain in toolchains:
        lost = "" if toolchain.provisional is None else f"provisional: {toolchain.provisional}"
        note = "; ".join(filter(None, (toolchain.changes, "unverified" if toolchain.unverified else "", lost)))
        table.add_row(toolchain.name, toolchain.build, toolchain.origin, toolchain.bridge or "", note)
    return table
