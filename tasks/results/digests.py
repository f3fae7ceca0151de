"""The inputs of a cell in the table `cells`: their digests, by which `plan` finds equal cells, and their keys, by which
a history and `diff` say what changed."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import Enum
from typing import cast

from qnnsweep.conf.masking import MASK, names_secret
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records.cell_rows import InputDigests
from qnnsweep.tasks.storage.digest import digest

_INPUTS = ("model", "scheme", "soc", "measure", "tolerance", "backend")


def input_digests(request: Request, code: str | None) -> InputDigests:
    """Return the digests of a cell's inputs. `code`: that of the model's code and files; None if it was not needed."""
    return InputDigests(
        model_digest=digest([request.model, code]) if code else None,
        scheme_digest=digest(request.scheme),
        soc_digest=digest(request.soc),
        request_digest=digest([request.measure, request.tolerance, request.backend]),
    )


def settings(request: Request) -> tuple[str, ...]:
    """Return every key of the inputs that has a value, as an override. A secret is `***`."""
    inputs = {group: asdict(getattr(request, group)) for group in _INPUTS}
    return tuple(
        f"{key}={MASK if names_secret(key, request.masked_names) else value}" for key, value in _flat("", inputs)
    )


def _flat(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield from _flat(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in cast("list[object]", value)):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _flat(f"{key}[{index}]", item)
    elif value not in (None, [], ()):
        yield key, value.name if isinstance(value, Enum) else str(cast("object", value))
