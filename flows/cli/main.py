"""The command line: the table of all commands, and the program.

Heavy libraries are imported only by the bodies of commands, after the request has been parsed and checked.
"""

import gc
import io
import sys
from typing import Annotated, NoReturn

import typer

from qnnsweep.conf.errors import PASSED
from qnnsweep.flows.cli import (
    atlas,
    bisect,
    cache,
    diff,
    export,
    init,
    inspect,
    lists,
    plan,
    qualify,
    repair,
    repro,
    run,
    schemas,
    simulate,
    state,
    tensors,
    toolchain,
    ui,
)
from qnnsweep.flows.cli.command import (
    ON_FILES,
    ON_MACHINE,
    ON_MACHINE_SILENT,
    ON_OWN_WORDS,
    ON_STORE,
    ON_STORE_UNTIL_STOPPED,
    ON_STORE_WITH_FOLDERS,
    ON_STORE_WITH_OVERRIDES,
    ON_SWEEP,
    ON_SWEEP_UNTIL_STOPPED,
    Command,
)
from qnnsweep.flows.cli.ending import end, end_without_memory
from qnnsweep.flows.cli.options import EXITS, usage_line

app = typer.Typer(
    help="Compile PyTorch models for Snapdragon NPUs, execute them and compare them operator by operator.\n" + EXITS,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    Command(run.run, ON_SWEEP, "Run a sweep. Repeat the command to continue.", EXITS),
    Command(plan.plan, ON_SWEEP, "Show the cells that a run would have, and what they will meet.", EXITS),
    Command(state.devices, ON_SWEEP, "Show the devices and whether they can be used.", EXITS),
    Command(state.doctor, ON_STORE, "Show what this machine lacks, and how to install it."),
    Command(run.report, ON_STORE, "Show a run and write its report again."),
    Command(export.export, ON_STORE, "Write a run for MLflow, Weights & Biases or TensorBoard.", export.EXITS),
    Command(inspect.inspect, ON_MACHINE, "Show what a program (.pte) contains.", inspect.EXITS),
    Command(diff.diff, ON_STORE, "Compare two runs, or two programs.", diff.EXITS),
    Command(run.serve, ON_SWEEP_UNTIL_STOPPED, "Run a sweep on a schedule, or on request from Prefect.", EXITS),
    Command(run.recompare, ON_STORE_WITH_OVERRIDES, "Compare a past run again with other tolerances.", EXITS),
    Command(qualify.qualify, ON_SWEEP, "Compare a toolchain with the present one.", qualify.EXITS),
    Command(bisect.bisect, ON_OWN_WORDS, "Search the change that makes a good cell bad.", bisect.EXITS),
    Command(repair.repair, ON_SWEEP, "Search a scheme that reaches a target, and certify it.", repair.EXITS),
    Command(atlas.atlas, ON_SWEEP, "Measure which operators can be used.", atlas.EXITS),
    Command(repro.repro, ON_STORE, "Write a folder that shows an operator's error.", repro.EXITS),
    Command(lists.list_, ON_STORE_WITH_FOLDERS, "List models, schemes, SoCs, devices, runs or operators.", name="list"),
    Command(tensors.tensors, ON_STORE, "Write the tensors of one operator.", tensors.EXITS),
    Command(schemas.schema, ON_MACHINE_SILENT, "Print the JSON schema of what a command prints with --json."),
    Command(simulate.simulate, ON_STORE, "Evaluate many samples as the device would, on the host.", simulate.EXITS),
    Command(ui.ui, ON_STORE_UNTIL_STOPPED, "Serve the reports to browsers of this machine."),
)
GROUPS = (
    ("init", init.app, (Command(init.model, ON_FILES, exits=init.EXITS),)),
    ("cache", cache.app, (Command(cache.prune, ON_STORE), Command(cache.verify, ON_STORE))),
    (
        "toolchain",
        toolchain.app,
        (
            Command(toolchain.add, ON_MACHINE, exits=toolchain.EXITS),
            Command(toolchain.list_, ON_MACHINE, exits=toolchain.EXITS, name="list"),
            Command(toolchain.remove, ON_MACHINE_SILENT, exits=toolchain.EXITS),
        ),
    ),
)

_ALL = (("", app, COMMANDS), *GROUPS)
_WITHOUT_OVERRIDES = {
    group or command.called for group, _, commands in _ALL for command in commands if command.has_store
}
"""The commands in which the word `artifacts=PLACE` is not an override, and means the option `--artifacts`."""
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Libraries create many objects that stay. With Python's threshold, collections are a tenth of the time of imports."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib import metadata

        versions = (f"{name} {metadata.version(name)}" for name in ("executorch", "torch", "prefect"))
        print(f"qnnsweep {metadata.version('qnnsweep')} ({', '.join(versions)})")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # the callback has shown it


for _name, _group, _commands in _ALL:
    for _command in _commands:
        _command.add_to(_group, _name)
app.add_typer(init.app, name="init", short_help="Write the file of configuration of a model by name.")
app.add_typer(cache.app, name="cache", short_help="Show, check and remove what is stored.")
app.add_typer(toolchain.app, name="toolchain", short_help="Prepare, list and remove other QNN releases.")


def main() -> NoReturn:
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    end_without_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 shows "?" for what it lacks
            stream.reconfigure(errors="replace")
    end(command_line(sys.argv[1:]))


def command_line(words: list[str]) -> int:
    """Run the command of these words, and return its exit code."""
    if words and words[0] in _WITHOUT_OVERRIDES:
        words = [f"--{word}" if word.startswith("artifacts=") else word for word in words]
    try:
        return app(words, prog_name="qnnsweep", standalone_mode=False) or PASSED
    except typer.TyperException as error:
        is_help = error.message.startswith("Usage: ")  # of a command that needs a further word
        print(error.message if is_help else f"qnnsweep: {usage_line(error)}", file=sys.stderr)
        return error.exit_code
