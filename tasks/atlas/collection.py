"""The cases of a collection, as its source yields them. Runs in a worker."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qnnsweep.conf.models import OWN_CALLS, SAMPLES_OF_CALLS, DataConfig, InputConfig, ModelConfig, Split
from qnnsweep.tasks.errors import QnnsweepError, RequestError
from qnnsweep.tasks.records import OperatorCase, OperatorCases, TensorSpec

_MODEL_CALLS = OWN_CALLS.partition(":")[0]


def collected(collection: ModelConfig) -> OperatorCases:
    """Return the cases of a collection. Raises RequestError if the source fails or yields something else."""
    from qnnsweep.tasks.toolchain.user_code import imported

    assert collection.cases is not None, "checked by the command"
    key = f"model.cases={collection.cases}"
    source = imported(collection.cases, "model.cases")
    arguments = {"model": collection} if collection.cases == OWN_CALLS else collection.arguments
    try:
        listed = [*source(**arguments)]
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


def model_of(case: OperatorCase, collection: ModelConfig) -> ModelConfig:
    """Return the case as a model of its own."""
    arguments = json.loads(case.arguments)
    calibration, evaluation, factory = collection.calibration, collection.evaluation, collection.factory
    if collection.cases == OWN_CALLS:
        arguments |= {"model": collection}
        factory = f"{_MODEL_CALLS}:call_module"
        evaluation = _samples("evaluation")
        is_calibrated = any(part.calibration for part in (collection, *(collection.methods or ())))
        calibration = _samples("calibration") if is_calibrated else None
    return ModelConfig(
        name=case.name,
        factory=factory,
        arguments=arguments,
        inputs=[InputConfig(name=spec.name, shape=list(spec.shape), dtype=spec.dtype) for spec in case.inputs],
        calibration=_with(arguments, calibration),
        evaluation=_with(arguments, evaluation),
    )


def _samples(split: Split) -> DataConfig:
    return DataConfig(source=f"{_MODEL_CALLS}:call_samples", arguments={"split": split}, count=SAMPLES_OF_CALLS[split])


def _with(arguments: Mapping[str, Any], data: DataConfig | None) -> DataConfig | None:
    return None if data is None else replace(data, arguments={**data.arguments, **arguments})


def _case(item: object, key: str) -> OperatorCase:
    if not isinstance(item, Mapping):
        raise RequestError(f"{key}: yields a {type(item).__name__}, not a mapping; see docs/operators.md")
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
