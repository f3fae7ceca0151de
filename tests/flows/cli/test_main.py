"""The command line as a user sees it: its commands and options, its plans, and its messages for wrong requests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import EnumType
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from qnnsweep.conf.load import load
from qnnsweep.flows.cli.main import app, command_line
from tests.program import Program

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "goldens" / "cli.txt"


def command_lines(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that select each command of the program, parents first."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from command_lines(child, (*path, name))


def interface() -> str:
    """Return each command with its arguments, options, defaults and exit codes, which is the content of GOLDEN."""
    root = typer.main.get_command(app)
    lines: list[str] = []
    for words in command_lines(root):
        command: Any = reduce(lambda parent, name: parent.commands[name], words, root)
        text = " ".join(f"{command.help} {command.epilog or ''}".split())
        codes = re.findall(r"(?:: |· )(\d+) ", text[text.find("Exit codes") :]) if "Exit codes" in text else []
        lines.append(" ".join(["qnnsweep", *words, *(["· exit codes", *codes] if codes else [])]))
        lines += sorted(f"  {described(parameter)}" for parameter in command.params)
    return "\n".join(lines) + "\n"


def described(parameter: Any) -> str:
    """Return the names of an argument or an option, whether it is repeated or required, its choices and its default."""
    is_option = parameter.param_type_name == "option"
    names = "/".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.metavar or parameter.name
    repeated = "..." if parameter.multiple or parameter.nargs == -1 else ""
    kind = parameter.type_descriptor.annotation
    choices = [f"one of {', '.join(item.value for item in kind)}"] if isinstance(kind, EnumType) else []
    required = ["required"] if parameter.required else []
    default = [] if parameter.default is None else [f"default {parameter.default}"]
    return " · ".join([f"{names}{repeated}", *required, *choices, *default])


def error_line(ran: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """Return the only line of the error output, without its prefix."""
    assert ran.returncode == exit_code
    assert "Traceback" not in ran.stderr
    (line,) = (line for line in ran.stderr.splitlines() if line.startswith("qnnsweep: "))
    assert ran.stderr.endswith(f"{line}\n")
    assert ran.stdout == ""
    return line.removeprefix("qnnsweep: ")


def test_the_names_defaults_and_exit_codes_of_every_command_are_the_golden() -> None:
    assert interface() == GOLDEN.read_text(), "run `python -m tests.flows.cli.test_main`"


def test_every_command_has_a_help_which_says_what_each_of_its_options_does() -> None:
    root = typer.main.get_command(app)
    for words in command_lines(root):
        result = CliRunner().invoke(app, [*words, "--help"], prog_name="qnnsweep", terminal_width=78)
        assert (result.exit_code, result.stdout.partition("\n")[0][:16]) == (0, "Usage: qnnsweep "), words
        command: Any = reduce(lambda parent, name: parent.commands[name], words, root)
        assert command.help, words
        assert [parameter.name for parameter in command.params if not parameter.help] == [], words


def test_the_program_lists_the_commands_of_the_golden(program: Program) -> None:
    completed = program.run("--help")
    assert (completed.returncode, completed.stderr) == (0, "")
    listed = re.findall(r"^  (\w+)  ", completed.stdout.partition("Commands:\n")[2], flags=re.MULTILINE)
    assert listed == re.findall(r"^qnnsweep (\w+)(?: ·|$)", GOLDEN.read_text(), flags=re.MULTILINE)


def test_the_list_of_commands_cuts_no_sentence_at_80_columns(program: Program) -> None:
    commands = program.run("--help", COLUMNS="80").stdout.partition("Commands:\n")[2].splitlines()
    assert len(commands) >= 13
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


def test_the_examples_in_the_help_of_recompare_are_valid_overrides() -> None:
    page = CliRunner().invoke(app, ["recompare", "--help"], terminal_width=200).stdout
    (examples,) = re.findall(r"For example: (\S+), or '(\S+)'\.", " ".join(page.split()))
    assert [len(load(["model=digits_cnn", example]).cells) for example in examples] == [1, 1]


def test_without_a_command_the_help_is_shown(program: Program) -> None:
    ran = program.run()
    assert ran.returncode == 2
    assert ran.stdout + ran.stderr == program.run("--help").stdout


def test_the_installed_command_is_the_same_program(program: Program) -> None:
    command = Path(sys.executable).parent / "qnnsweep"
    ran = subprocess.run(
        [command, "plan", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
        cwd=program.folder,
    )
    assert ran.stdout == program.run("plan", "--json").stdout


def test_a_plan_is_a_table_of_cells_with_the_reasons_of_impossible_ones(program: Program, tmp_path: Path) -> None:
    ran = program.run("plan", f"artifacts={tmp_path}", "scheme=fp16,8a8w", "soc=SM8350,SM8650")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines() if line.strip() and "─" not in line]
    assert lines == [
        "model scheme soc backend device",
        "digits_cnn fp16 SM8350 qnn local",
        "impossible: Hexagon v68 computes no 16-bit float; v69 or newer does",
        "digits_cnn fp16 SM8650 qnn local",
        "digits_cnn 8a8w SM8350 qnn local",
        "digits_cnn 8a8w SM8650 qnn local",
        "3 to run, 1 impossible",
    ]


def test_a_plan_as_json_is_one_line_of_all_cells_in_order(program: Program) -> None:
    ran = program.run("plan", "--json", "scheme=fp16,8a8w", "soc=SM8350,SM8650")
    assert (ran.returncode, ran.stderr, ran.stdout.count("\n")) == (0, "", 1)
    local = {"model": "digits_cnn", "toolchain": "default", "backend": "qnn", "device": "local"}
    reason = "Hexagon v68 computes no 16-bit float; v69 or newer does"
    cells = [
        local
        | {"scheme": scheme, "soc": soc, "impossible": reason if (scheme, soc) == ("fp16", "SM8350") else None}
        | {"compiled": False}
        for scheme in ("fp16", "8a8w")
        for soc in ("SM8350", "SM8650")
    ]
    planned = {"schema": "qnnsweep/plan/1", "cells": cells, "seconds": None}  # in a folder without a run
    assert json.loads(ran.stdout) == planned


WRONG = {
    "model=nope": "model=nope: no such model; one of ",
    "scheme=9a9w": "scheme=9a9w: no such scheme; did you mean 8a4w or 8a8w? one of ",
    "soc=SM1": "soc=SM1: no such soc; one of ",
    "modle=x": "modle: no such key; did you mean model? there are: artifacts, backend, budget, by_operator, ",
    "measure.iteration=3": "measure.iteration: no such key; did you mean iterations? in measure: ",
    "measure.iterations=0": "measure.iterations=0: 1 or more",
    "model.calibration=null": "model.calibration=null: scheme 8a8w is quantized and model digits_cnn has nothing to ",
    "model.factory=net": (
        "model.factory=net: not of the form package.module:function or folder/file.py:function (model digits_cnn)"
    ),
}


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(("override", "begin"), WRONG.items(), ids=WRONG)
def test_a_wrong_request_is_one_line_and_nothing_starts(
    program: Program, tmp_path: Path, command: str, override: str, begin: str
) -> None:
    ran = program.run(command, f"artifacts={tmp_path}", override)
    assert error_line(ran, 2).startswith(begin)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_an_artifacts_path_with_a_file_in_it_is_one_line_and_nothing_starts(
    program: Program, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    line = error_line(program.run("run", f"artifacts={tmp_path / place}"), 3)
    assert line.startswith("artifacts: cannot use ")
    assert line.endswith("there is a file of that name: move it, or set artifacts=FOLDER to another folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_artifacts_folder_without_write_permission_is_one_line_and_nothing_starts(program: Program) -> None:
    # Even root cannot create folders in sysfs.
    line = error_line(program.run("run", "artifacts=/sys/qnnsweep"), 3)
    assert line.startswith("artifacts: cannot use /sys/qnnsweep")
    assert line.endswith("make it writable, or set artifacts=FOLDER to a writable folder")


@pytest.mark.toolchain
def test_a_factory_that_returns_no_module_is_one_line_and_nothing_is_compiled(
    served_program: Program, tmp_path: Path
) -> None:
    ran = served_program.run("run", f"artifacts={tmp_path}", "model.factory=os:getcwd", "scheme=fp16,8a8w")
    assert error_line(ran, 2) == "model.factory=os:getcwd: returned a str, not a torch.nn.Module"
    assert not (tmp_path / "tables").exists()
    assert not (tmp_path / "devices").exists()


def test_debug_shows_the_traceback_and_keeps_the_exit_code(program: Program) -> None:
    ran = program.run("plan", "--debug", "model=nope")
    assert ran.returncode == 2
    first, *_, line = ran.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert line.startswith("qnnsweep: model=nope: no such model")


def test_a_report_without_a_run_or_of_an_unknown_run_is_one_line(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "never used"
    line = error_line(program.run("report", f"--artifacts={folder}"), 2)
    assert line == f"no run in {folder}; there is none"
    line = error_line(program.run("report", "20200101T000000Z-0000", f"--artifacts={folder}"), 2)
    assert line == f"no run '20200101T000000Z-0000' in {folder}; there is none"
    assert not folder.exists()


WRONG_WORDS = {
    "runn": "no such command 'runn'. Did you mean 'run'?; `qnnsweep -h` shows the arguments and options",
    "report --artefacts=x": "no such option: --artefacts (Possible options: --artifacts); `qnnsweep report -h` ",
    "report one two": "got unexpected extra argument(s) (two); `qnnsweep report -h` ",
    "report --json=3": "option '--json' does not take a value; ",
    "report --format xml": "invalid value for '--format': 'xml' is not one of 'junit', 'hud', 'suite', 'github'; ",
    "plan --config-dir": "option '--config-dir' requires an argument; ",
    "diff latest": "missing argument 'RUN_B'; `qnnsweep diff -h` ",
    "list": "missing argument 'KIND'. Choose from: models, schemes, socs, devices, runs, operators; ",
    "list modells": "invalid value for 'KIND': 'modells' is not one of 'models', 'schemes', 'socs', 'devices', ",
    "cache prune --keep -1": "invalid value for '--keep': Input should be greater than or equal to 0; ",
    "toolchain add": "missing argument '[NAME] KEY=VALUE'; `qnnsweep toolchain add -h` ",
    "ui --port 99999": "invalid value for '--port': Input should be less than or equal to 65535; `qnnsweep ui -h` ",
    "recompare latest": "latest: to compare a past run again, override only tolerance, measure.replay, "
    "measure.metrics, measure.references, limits; to name a run, write --run=latest",
}


@pytest.mark.parametrize(("words", "begin"), WRONG_WORDS.items(), ids=WRONG_WORDS)
def test_wrong_words_are_one_line(capsys: pytest.CaptureFixture[str], words: str, begin: str) -> None:
    code = command_line(words.split())
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith(f"qnnsweep: {begin}")


def test_an_unreachable_prefect_server_is_one_line_and_nothing_starts(program: Program, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/api"
    ran = subprocess.run(
        [sys.executable, "-c", "from qnnsweep.flows.cli.main import main; main()", "run", f"artifacts={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=program.folder,
        env=program.environment | {"PREFECT_API_URL": url},
    )
    line = error_line(ran, 3)
    assert line.startswith(f"PREFECT_API_URL={url}: ")
    assert line.endswith("; start a server there, or unset PREFECT_API_URL to use a temporary one")


def test_a_wrong_qnn_folder_is_one_line_and_nothing_starts(program: Program, tmp_path: Path) -> None:
    line = error_line(program.run("run", f"artifacts={tmp_path}", QNN_SDK_ROOT="/nonexistent"), 3)
    assert line.startswith("QNN_SDK_ROOT=/nonexistent: no libQnnHtp.so, libQnnSystem.so in /nonexistent/")
    assert line.endswith("unset it to use the onnxruntime-qnn wheel")


if __name__ == "__main__":
    GOLDEN.write_text(interface())
