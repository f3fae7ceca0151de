"""Limits of a user's configuration, so that a mistake in it ends in a message and not in a long wait."""

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from qnnsweep.conf.errors import RequestError, printable

LONGEST_OVERRIDE = 4000
"""In characters. The duration of Hydra's parser is quadratic in the number of values of a list."""
MOST_VALUES = 10_000
"""Of an option's file, with every alias replaced by the values of its anchor. OmegaConf needs 0.2 ms per value."""
_LARGEST_FILE_BYTES = 1_000_000
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_override(override: str) -> None:
    """Raise RequestError if the override is too long."""
    if len(override) > LONGEST_OVERRIDE:
        key = override.partition("=")[0]
        problem = (
            f"{len(override)} characters; at most {LONGEST_OVERRIDE}; put long lists into the YAML file of an option"
        )
        raise RequestError(problem, key=printable(key[:80]))


def check_file(file: Path) -> None:
    """Raise RequestError if the option's file would take long to read. Other mistakes are left to those who read it."""
    if not file.is_file():  # to read a pipe or a device would take for ever
        raise RequestError(f"{printable(file)}: not a regular file; remove it, or rename it")
    with suppress(yaml.YAMLError, UnicodeError, OSError, RecursionError):
        if (size := file.stat().st_size) > _LARGEST_FILE_BYTES:
            raise RequestError(f"{printable(file)}: {size} bytes; at most {_LARGEST_FILE_BYTES}")
        if (count := _count_values(file.read_text())) > MOST_VALUES:
            raise RequestError(
                f"{printable(file)}: {count} values, counting those that its aliases repeat; at most {MOST_VALUES}"
            )


def _count_values(text: str) -> int:
    """Return the number of values that the YAML text has after every alias is replaced."""
    totals, anchors, of_anchor = [0], list[str | None](), dict[str | None, int]()
    for event in cast(Any, yaml).parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
            totals.append(0)
        elif isinstance(event, yaml.AliasEvent):
            totals[-1] += of_anchor.get(event.anchor, 1)  # an anchor that contains this alias has no number yet
        elif isinstance(event, yaml.CollectionEndEvent | yaml.ScalarEvent):
            is_scalar = isinstance(event, yaml.ScalarEvent)
            anchor, total = (event.anchor, 1) if is_scalar else (anchors.pop(), 1 + totals.pop())
            of_anchor[anchor] = total
            totals[-1] += total
    return totals[0]
