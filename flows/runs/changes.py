"""What changed between two nights of a cell: versions, the device, and the keys of its inputs with both values."""

from collections.abc import Mapping, Sequence
from typing import Any

from qnnsweep.tasks.records.tables import VERSION_COLUMNS
from qnnsweep.tasks.report.format import plural

Row = Mapping[str, Any]

DIGESTS = {"model_digest": "model", "scheme_digest": "scheme", "soc_digest": "soc", "request_digest": "configuration"}
_KEYS = {"configuration": ("measure.", "tolerance.", "backend.")}
"""The beginnings of the keys of an input, where they are not its name."""
_MOST_KEYS = 6


def changes(before: Row, after: Row) -> list[str]:
    """Describe the differences in versions, device and inputs between two rows of `cells`. Ignore unknown values."""
    columns = [*VERSION_COLUMNS]
    # If a cell failed before a device was chosen, its column `device` contains the name of its farm.
    if all(row["device"] != row["farm"] for row in (before, after)):
        columns += ["device", "device_id"]

    def differs(column: str) -> bool:
        return before[column] and after[column] and before[column] != after[column]

    values = [f"{column} {before[column]} -> {after[column]}" for column in columns if differs(column)]
    for column, word in DIGESTS.items():
        if differs(column):
            values += _changed_keys(word, before.get("settings") or (), after.get("settings") or ())
    return values


def _changed_keys(word: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the keys of an input with both values; the name of the input if they are not known, or are the same."""
    begins = _KEYS.get(word, (f"{word}.",))
    old, new = (dict(item.split("=", 1) for item in items if item.startswith(begins)) for items in (before, after))
    if not old or not new:
        return [word]
    keys = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    more = [f"{plural(len(keys) - _MOST_KEYS, 'more key')} of the {word}"] if len(keys) > _MOST_KEYS else []
    shown = [f"{name} {old.get(name, 'null')} -> {new.get(name, 'null')}" for name in keys[:_MOST_KEYS]]
    return [*shown, *more] or [f"{word} (its code or files)"]
