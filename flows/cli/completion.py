"""Shell completion: the keys and values of overrides, the ids of runs, and toolchains.

Bash splits a word at each `=`, so the key of a value may be an earlier word. Other shells pass the whole word.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import typer

from qnnsweep.conf.errors import QnnsweepError
from qnnsweep.conf.places import PHOTOGRAPHS, SAMPLES_KEYS
from qnnsweep.conf.toolchains import KEYS


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the overrides that begin with `incomplete`: a key, or a key and a value."""
    *before, last = [*(ctx.params.get("overrides") or ctx.params.get("words") or ()), *ctx.args] or [""]
    if last == "=" and before:
        return list(_values(ctx, before[-1], incomplete))
    if last and not incomplete and "=" not in (last + "".join(before[-1:])):  # after `key=`, without a value yet
        return list(_values(ctx, last, ""))
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={completed}" for completed in _values(ctx, key, value)]
    from qnnsweep.conf.describe import keys_that_begin_with

    return [f"{completed}=" for completed in keys_that_begin_with(key)]


def complete_bisect(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the overrides of a cell that begin with `incomplete`. Of several overrides, the last is completed."""
    before, space, last = incomplete.rpartition(" ")
    keys = [f"{key}=" for key in KEYS if key.startswith(last)]
    return [f"{before}{space}{completed}" for completed in [*complete_override(ctx, last), *keys]]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of runs that begin with `incomplete`: `latest`, `previous` and the ids, newest first."""
    from qnnsweep.tasks.storage import tables
    from qnnsweep.tasks.storage.store import Store

    known: list[str] = []
    with suppress(QnnsweepError):
        known = tables.runs(Store.at(str(ctx.params.get("artifacts") or "artifacts")))
    return [name for name in ("latest", "previous", *reversed(known)) if name.startswith(incomplete)]


def complete_toolchain(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of toolchains that begin with `incomplete`."""
    return [name for name in _choices("toolchain", ctx.params.get("config_dir") or ()) if name.startswith(incomplete)]


def _values(ctx: typer.Context, key: str, value: str) -> Iterator[str]:
    """Yield the values that the override `key` accepts. Of several values, the last is completed."""
    first, comma, last = value.rpartition(",")
    for choice in _choices(key, ctx.params.get("config_dir") or ()):
        if choice.startswith(last) and choice not in first.split(","):
            yield f"{first}{comma}{choice}"


def _choices(key: str, config_dirs: Iterable[Path]) -> list[str]:
    from qnnsweep.conf.describe import choices
    from qnnsweep.conf.named import KINDS
    from qnnsweep.conf.options import GROUPS, Options

    if key in SAMPLES_KEYS:
        return [PHOTOGRAPHS]
    if key not in GROUPS:
        return choices(key)
    with suppress(QnnsweepError), tempfile.TemporaryDirectory() as links:
        names = sorted(Options.of(list(config_dirs), links=Path(links)).files[key])
        return [*names, *KINDS] if key == "model" else names
    return []
