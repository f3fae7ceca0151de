"""The declaration of a command: its own parameters and body, the parameters that it shares, and what it prints.

A body gets the `Words` that several commands share, and its own parameters. It returns an `Output`, or None.
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from rich.console import RenderableType

from qnnsweep.conf.errors import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, NOT_ALL_PASSED, PASSED, REQUEST_WRONG
from qnnsweep.flows.cli.options import (
    Artifacts,
    ArtifactsOfSweep,
    ConfigDirs,
    Debug,
    Json,
    Multirun,
    Overrides,
    console,
)
from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable, QnnsweepError, RequestError

if TYPE_CHECKING:
    from qnnsweep.tasks.storage.store import Store

JSON_VERSION = 1
"""The version of the schemas of `--json`. It is raised when a key is removed, or gets another meaning."""
Shared = tuple[tuple[tuple[str, Any, Any], ...], tuple[tuple[str, Any, Any], ...]]
"""The parameters of a command that others have, too: those before its own options, and those behind them."""
_OVERRIDES, _FOLDERS = ("overrides", Overrides, None), ("config_dir", ConfigDirs, None)
_JSON, _DEBUG, _STORE = ("json_", Json, False), ("debug", Debug, False), ("artifacts", Artifacts, "artifacts")
_STORE_OF_SWEEP = ("artifacts", ArtifactsOfSweep, None)
_MULTIRUN = ("multirun", Multirun, False)
ON_SWEEP: Shared = (_OVERRIDES, _FOLDERS), (_MULTIRUN, _JSON, _DEBUG, _STORE_OF_SWEEP)
ON_SWEEP_UNTIL_STOPPED: Shared = (_OVERRIDES, _FOLDERS), (_MULTIRUN, _DEBUG, _STORE_OF_SWEEP)
ON_FILES: Shared = (_OVERRIDES, _FOLDERS), (_JSON, _DEBUG)
ON_OWN_WORDS: Shared = (), (_JSON, _DEBUG, _STORE_OF_SWEEP)
ON_STORE: Shared = (), (_JSON, _DEBUG, _STORE)
ON_STORE_UNTIL_STOPPED: Shared = (), (_DEBUG, _STORE)
ON_STORE_WITH_FOLDERS: Shared = (_FOLDERS,), (_JSON, _DEBUG, _STORE)
ON_STORE_WITH_OVERRIDES: Shared = (_OVERRIDES, _FOLDERS), (_JSON, _DEBUG, _STORE)
ON_MACHINE: Shared = (), (_JSON, _DEBUG)
ON_MACHINE_SILENT: Shared = (), (_DEBUG,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The words of a command line that several commands accept."""

    overrides: list[str]
    """The overrides, with that of the option `--artifacts`."""
    config_dirs: list[Path]
    artifacts: str
    as_json: bool

    @property
    def folders(self) -> list[Path]:
        """The absolute paths of `config_dirs`."""
        return [folder.absolute() for folder in self.config_dirs]

    @property
    def store(self) -> "Store":
        """The store at `artifacts`. Raises RequestError."""
        from qnnsweep.conf.check import artifacts_problems
        from qnnsweep.tasks.storage.store import Store

        for error in artifacts_problems(self.artifacts, key="--artifacts"):
            raise error
        return Store.at(self.artifacts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a command prints, and its exit code."""

    contents: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The object of `--json`."""
    schema: str | None = None
    """The name of the object's schema, if this is not the name of the command."""
    parts: Sequence[RenderableType] = ()
    """Tables and lines. With `--json` they are not printed, unless `with_json` is set."""
    with_json: bool = False
    notes: str | None = None
    """Lines for stderr."""
    last: Callable[[], None] | None = None
    """What is done when all is printed."""
    exit_code: int = PASSED


@dataclass(frozen=True, slots=True)
class Command:
    """A line of the table of commands."""

    body: Callable[..., Output | None]
    shared: Shared
    about: str | None = None
    """The line in the list of commands; by default the first of the body's docstring."""
    exits: str | None = None
    """The exit codes in the command's help."""
    name: str | None = None
    """By default the name of the body."""

    @property
    def called(self) -> str:
        """The word of the command."""
        return self.name or self.body.__name__

    @property
    def has_store(self) -> bool:
        """Whether the command reads a store that no override names."""
        return _STORE in self.shared[1]

    def add_to(self, app: typer.Typer, group: str = "") -> None:
        """Add the command to the program, or to a group of its commands."""
        words = f"{group} {self.called}".lstrip()
        app.command(self.name, epilog=self.exits, short_help=self.about)(function_of(self, words))


def function_of(command: Command, words: str) -> Callable[..., None]:
    """Return the function that Typer calls for a command: it has the command's own and its shared parameters."""
    _, *parameters_of_body = signature(command.body).parameters.values()
    arguments = [parameter for parameter in parameters_of_body if _is_argument(parameter)]
    options = [parameter for parameter in parameters_of_body if not _is_argument(parameter)]
    before, after = map(_parameters, command.shared)
    ordered = [*arguments, *before, *options, *after]
    parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in ordered]

    def call(**values: Any) -> None:
        run_body(command.body, values, words, is_of_sweep=_STORE_OF_SWEEP in command.shared[1])

    call.__name__, call.__doc__ = command.body.__name__, command.body.__doc__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def run_body(
    body: Callable[..., Output | None], values: Mapping[str, Any], command: str, *, is_of_sweep: bool = False
) -> None:
    """Call a body with those `values` that are its own, print its output and exit.

    An error of qnnsweep becomes one line on stderr, an exit code and, with `--json`, the object of the schema `error`.
    """
    _, *names = signature(body).parameters
    words = _words(values, is_of_sweep=is_of_sweep)
    with exit_on_error(values["debug"], as_json=words.as_json):
        output = body(words, **{name: values[name] for name in names})
        if output is not None:
            _print(output, command if words.as_json else None)
            raise typer.Exit(output.exit_code)


def _is_argument(parameter: Parameter) -> bool:
    return any(isinstance(part, typer.models.ArgumentInfo) for part in get_args(parameter.annotation)[1:])


def _parameters(shared: Iterable[tuple[str, Any, Any]]) -> list[Parameter]:
    kind = Parameter.KEYWORD_ONLY
    return [Parameter(name, kind, default=default, annotation=hint) for name, hint, default in shared]


def _words(values: Mapping[str, Any], *, is_of_sweep: bool) -> Words:
    overrides: list[str] = [*(values.get("overrides") or ())]
    folders: list[Path] = [folder.expanduser() for folder in values.get("config_dir") or ()]
    artifacts = values.get("artifacts")
    if is_of_sweep and artifacts is not None:
        from qnnsweep.conf.compose import quoted

        overrides.append(f"artifacts={quoted(artifacts)}")
    as_json = values.get("json_", False)
    return Words(overrides=overrides, config_dirs=folders, artifacts=artifacts or "artifacts", as_json=as_json)


def _print(output: Output, command: str | None) -> None:
    """Print the tables, or the object of a command's `--json`."""
    for part in output.parts if output.with_json or command is None else ():
        if isinstance(part, str):
            print(part, flush=True)
        else:
            console().print(part, crop=False)
    if command is not None and output.contents:
        _print_json(output.schema or command, output.contents)
    if output.notes is not None:
        print(output.notes, file=sys.stderr)
    if output.last is not None:
        output.last()


def _print_json(name: str, contents: Mapping[str, Any]) -> None:
    """Print an object with the name of its schema. A number that JSON does not have is a text, such as `inf`."""
    whole = {"schema": f"qnnsweep/{name}/{JSON_VERSION}", **contents}
    print(json.dumps(_finite(whole), allow_nan=False, default=str), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def exit_on_error(debug: bool, *, as_json: bool = False) -> Iterator[None]:
    """Turn an error of qnnsweep into one line on stderr and an exit code. `debug`: also print the traceback."""
    try:
        yield
    except QnnsweepError as error:
        if debug:
            traceback.print_exc()
        print(f"qnnsweep: {error}", file=sys.stderr)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from qnnsweep.tasks.report.formats.github import annotation

            print(annotation(str(error)), file=sys.stderr)
        codes = {EnvironmentUnusable: ENVIRONMENT_UNUSABLE, DeviceError: DEVICES_UNUSABLE}
        is_wrong = isinstance(error, RequestError)
        code = REQUEST_WRONG if is_wrong else codes.get(type(error), NOT_ALL_PASSED)
        if as_json:
            key = error.key if isinstance(error, RequestError) else None
            problem = {"message": str(error), "kind": type(error).__name__, "exit_code": code, "key": key}
            _print_json("error", {"error": problem})
        raise typer.Exit(code) from None
