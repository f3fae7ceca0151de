"""The checks of a model's states and of its driver: every name must be that of a method or of an input."""

from collections.abc import Iterator

from qnnsweep.conf.errors import RequestError, did_you_mean, one_of, printable
from qnnsweep.conf.models import MethodConfig, ModelConfig


def methods_with_keys(model: ModelConfig) -> list[tuple[str, ModelConfig | MethodConfig]]:
    """Return the key and the configuration of every method. A model without methods is its own only method."""
    if model.methods is None:
        return [("model", model)]
    return [(f"model.methods[{index}]", method) for index, method in enumerate(model.methods)]


def samples_key(model: ModelConfig, method: str) -> str:
    """Return the key that has the samples of the method with the key `method`. With states, they are the model's."""
    return method if model.states is None else "model"


def state_problems(model: ModelConfig) -> Iterator[RequestError]:
    """Yield one error per reason to refuse the states and the driver of a model."""
    if model.states is None:
        if model.driver is not None:
            yield RequestError("only valid with model.states, whose steps read the tokens", key="model.driver")
        return
    for index, method in enumerate(model.methods or ()):
        for split in ("calibration", "evaluation"):
            if getattr(method, split):
                problem = f"set model.{split}, because with model.states the samples are sequences of all methods"
                yield RequestError(problem, key=f"model.methods[{index}].{split}")
    inputs: dict[str | None, list[str]] = {
        method.name: [spec.name for spec in method.inputs] for method in model.methods or ()
    }
    if model.methods is None:
        inputs[None] = [spec.name for spec in model.inputs]
    for index, state in enumerate(model.states):
        key = f"model.states[{index}]"
        for name, method in (("method", state.method), ("to_method", state.to_method or state.method)):
            if method not in inputs:
                yield _unknown(f"{key}.{name}", method, "method", [known for known in inputs if known])
        reader = inputs.get(state.to_method or state.method)
        if reader is not None and state.input not in reader:
            yield _unknown(f"{key}.input", state.input, "input", reader)
    if model.driver is not None and not any(model.driver.input in names for names in inputs.values()):
        known = sorted({name for names in inputs.values() for name in names})
        yield _unknown("model.driver.input", model.driver.input, "input", known)


def _unknown(key: str, value: str | None, noun: str, known: list[str]) -> RequestError:
    accepted = f"{did_you_mean(value or '', known)}{one_of(known)}" if known else "null, for the model's only method"
    return RequestError(f"no such {noun}; {accepted}", key=key, value=printable(value))
