"""What a cell was run with, in the table `cells`: when, digests, by which `plan` finds equal cells, and the keys of its
inputs, by which a history and `diff` say what changed."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from typing import cast

from qnnsweep.conf.masking import MASK, names_secret
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import Capture
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


def started(run_id: str) -> str | None:
    """Return the time with which the id of a run begins."""
    with suppress(ValueError):
        return datetime.strptime(f"{run_id[:16]}+0000", "%Y%m%dT%H%M%SZ%z").isoformat()
    return None


def outputs_sha256(capture: Capture) -> str:
    """Return the digest of the final outputs of all methods. That of an only method is the digest of its file."""
    digests = [method.outputs.sha256 for method in capture.methods]
    return digests[0] if len(digests) == 1 else digest(digests)


def _flat(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield from _flat(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in cast("list[object]", value)):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _flat(f"{key}[{index}]", item)
    elif value not in (None, [], ()):
        yield key, value.name if isinstance(value, Enum) else str(cast("object", value))
