"""The command `qnnsweep list`: the names that other commands accept."""

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from qnnsweep.flows.cli.command import Output, Words
from qnnsweep.tasks.report.format import plain_table

if TYPE_CHECKING:
    from qnnsweep.tasks.storage.store import Store


class Kind(Enum):
    """What can be listed. Each value is also the key of the JSON output."""

    models = "models"
    schemes = "schemes"
    socs = "socs"
    devices = "devices"
    runs = "runs"
    operators = "operators"


_GROUPS = {Kind.models: "model", Kind.schemes: "scheme", Kind.socs: "soc", Kind.devices: "device"}
_MOST_INPUTS = 3
_OPERATOR = ("model", "operator", "target", "module_path")


def list_(
    words: Words,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"One of {', '.join(kind.value for kind in Kind)}.")],
) -> Output:
    """List the names that other commands accept: of models, schemes, SoCs, devices, runs, or of a run's operators.

    The operators are those of the latest run.
    """
    from qnnsweep.conf.named import FORMS
    from qnnsweep.conf.options import SHIPPED

    rows = _listed(kind, words.store, words.config_dirs)
    shipped = str(SHIPPED.resolve())
    if all(str(Path(str(row.get("file", shipped))).resolve()).startswith(shipped) for row in rows):
        shown = [{name: value for name, value in row.items() if name != "file"} for row in rows]
    else:
        shown = rows
    table = plain_table(*(shown[0] if shown else (f"no {kind.value}",)))
    for row in shown:
        table.add_row(*(Text(str(value)) for value in row.values()))
    notes = [f"and by name: {', '.join(FORMS)}; see docs/models.md"] if kind is Kind.models else []
    return Output(contents={kind.value: rows}, parts=[table, *notes])


def _listed(kind: Kind, store: "Store", config_dirs: Sequence[Path]) -> list[Mapping[str, str | int | None]]:
    """Return one mapping per name. Operators are those of the latest run. Raises RequestError."""
    if kind in _GROUPS:
        return _options(_GROUPS[kind], config_dirs)
    return _runs(store) if kind is Kind.runs else _operators(store)


def _options(group: str, config_dirs: Sequence[Path]) -> list[Mapping[str, str | int | None]]:
    from qnnsweep.conf.options import Options

    with tempfile.TemporaryDirectory() as links:
        files = Options.of(config_dirs, links=Path(links)).files[group]
    return [{group: name, **_described(group, file), "file": str(file)} for name, file in sorted(files.items())]


def _described(group: str, file: Path) -> dict[str, str]:
    """Return what an option is, by the first sentence of the comment in its file, and what matters in it."""
    import yaml

    text = file.read_text(errors="replace")
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    about = " ".join(line.lstrip("# ") for line in comment).partition(". ")[0].rstrip(".")
    details = {"inputs": ""} if group == "model" else {}
    with suppress(yaml.YAMLError, AttributeError, TypeError, KeyError):  # a run reports a mistake
        contents = yaml.safe_load(text)
        if group == "model":
            inputs = list(_inputs(contents))
            others = len(inputs) - _MOST_INPUTS
            details["inputs"] = ", ".join([*inputs[:_MOST_INPUTS], f"{others} others"] if others > 1 else inputs)
        elif group == "soc":
            details |= {"arch": f"v{contents['arch']}", "vtcm_mib": str(contents["vtcm_mib"])}
    return {"about": about, **details}


def _inputs(contents: Mapping[str, Any]) -> Iterator[str]:
    """Yield the inputs of a model, and those of its methods."""
    for part in (contents, *(contents.get("methods") or ())):
        for spec in part.get("inputs") or ():
            name = spec["name"] if part is contents else f"{part['name']}/{spec['name']}"
            yield f"{name} {spec.get('dtype', 'float32')} {'×'.join(map(str, spec['shape']))}"


def _runs(store: "Store") -> list[Mapping[str, str | int | None]]:
    """Return the runs, newest first."""
    from qnnsweep.tasks.storage import tables

    rows: list[Mapping[str, str | int | None]] = []
    for run_id in reversed(tables.runs(store)):
        cells = tables.rows(store, "cells", run_id)
        passed = sum(cell["outcome"] == "passed" for cell in cells)
        verb = next((cell["verb"] for cell in cells), None) or "run"  # null in runs of earlier versions
        rows.append({"run": run_id, "command": verb, "cells": len(cells), "passed": passed})
    return rows


def _operators(store: "Store") -> list[Mapping[str, str | int | None]]:
    from qnnsweep.flows.runs.names import resolve
    from qnnsweep.tasks.storage import tables

    rows = tables.rows(store, "operators", resolve(store, "latest"))
    unique = dict.fromkeys(tuple(row[name] for name in _OPERATOR) for row in rows)
    return [dict(zip(_OPERATOR, operator, strict=True)) for operator in unique]
