"""The cases of a collection, as its source yields them. Runs in a worker."""

import json
from collections.abc import Mapping
from typing import Any

from conf.models import ModelConfig
from tasks.errors import QnnsweepError, RequestError
from tasks.records import OperatorCase, OperatorCases, TensorSpec
from tasks.toolchain.export import imported


def collected(collection: ModelConfig) -> OperatorCases:
    """Return the cases of a collection. Raises RequestError if the source fails or yields something else."""
    assert collection.cases is not None, "checked by the command"
    key = f"model.cases={collection.cases}"
    source = imported(collection.cases, "model.cases")
    try:
        listed = [*source(**collection.arguments)]
    except QnnsweepError:
        raise
    except Exception as error:  # a user's own code may raise anything
        raise RequestError(f"{key}: {type(error).__name__}: {error}") from error
    cases = tuple(_case(item, key) for item in listed)
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"{key}: two cases are named {twice[0]}")
    if not cases:
        raise RequestError(f"{key}: yields no case")
    return OperatorCases(cases=cases)


def _case(item: object, key: str) -> OperatorCase:
    if not isinstance(item, Mapping):
        raise RequestError(f"{key}: yields a {type(item).__name__}, not a mapping; see docs/atlas.md")
    values: Mapping[str, Any] = item
    try:
        return OperatorCase(
            name=str(values["name"]),
            operator=str(values["operator"]),
            arguments=json.dumps(values.get("arguments", {}), sort_keys=True),
            inputs=tuple(
                TensorSpec(name=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
                for name, tensor in values.get("inputs", {}).items()
            ),
            skipped=values.get("skipped"),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RequestError(f"{key}: a case is not complete: {type(error).__name__}: {error}") from error
