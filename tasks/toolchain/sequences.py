"""The samples of a model with states: eager PyTorch runs sequences of steps, and every step is a sample of its method.

The loop is that of the runner, so that a device runs the same steps in the same way.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from qnnsweep.conf.models import DriverConfig, InputConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import Driven, Place, StateLink
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.tensors import flat_outputs, put_tensors

Called = Mapping[str, tuple[list[InputConfig], Callable[[tuple[torch.Tensor, ...]], object]]]
"""Per method, its inputs, and a function that returns its answer."""
Samples = dict[str, tuple[list[Mapping[str, Any]], Driven | None]]
"""Per method, its samples and, if a store was fixed, the record of the sequences."""


def driven_samples(
    model: ModelConfig,
    called: Called,
    sequences: Sequence[Any],
    key: str,
    store: Store | None,
    vocabulary: Sequence[str] | None = None,
) -> Samples:
    """Run every sequence in eager PyTorch. Return the samples of every method, in the order of the steps.

    `key`: the source of the sequences in messages. `vocabulary`: the texts of the tokens. Raises RequestError if a
    sequence does not match the configuration.
    """
    links = _PlanLinks(model, called)
    steps = [_steps(called, f"{key}: sequence {number}", sequence) for number, sequence in enumerate(sequences)]
    names = [str(sequence.get("name") or f"sequence {number}") for number, sequence in enumerate(sequences)]
    samples: dict[str, list[Mapping[str, Any]]] = {method: [] for method in called}
    positions: dict[str, list[Place]] = {method: [] for method in called}
    tokens: dict[tuple[int, int], int | None] = {}

    def call(_: tuple[int, int], step: Mapping[str, Any], inputs: runner.Arrays) -> runner.Arrays:
        method = step["method"]
        answer = flat_outputs(called[method][1](tuple(torch.from_numpy(array.copy()) for array in inputs)))
        links.resolve(method, list(answer))
        return [tensor.contiguous().numpy() for tensor in answer.values()]

    plan = links.plan(steps)
    with torch.no_grad():
        for (sequence, number), inputs, _, token in runner.steps_of(plan, links.read, call):
            step = steps[sequence][number]
            specs = called[step["method"]][0]
            values = {spec.name: torch.from_numpy(array) for spec, array in zip(specs, inputs, strict=True)}
            name = f"{names[sequence]}, step {number}"
            samples[step["method"]].append({"inputs": values, "name": name, "label": step["label"]})
            positions[step["method"]].append(Place(sequence=sequence, step=number))
            tokens[sequence, number] = token
    if store is None:
        return {method: (listed, None) for method, listed in samples.items()}
    if model.driver is not None and model.driver.tokens == "teacher_forced":
        _force(model.driver, called, steps, tokens)
    fixed = {
        f"{sequence}/{number}/{name}": value
        for sequence, listed in enumerate(steps)
        for number, step in enumerate(listed)
        for name, value in step["fixed"].items()
    }
    stored = json.dumps({**plan, "sequences": links.named(steps)}).encode()
    record: dict[str, Any] = {
        "links": tuple(StateLink(**link) for link in plan["states"]),
        "plan": store.put_bytes(stored),
        "fixed": put_tensors(store, fixed),
        "names": tuple(names),
        "vocabulary": None if vocabulary is None else store.put_bytes(json.dumps(list(vocabulary)).encode()),
    }
    return {
        method: (listed, Driven(**record, positions=tuple(positions[method]))) for method, listed in samples.items()
    }


class _PlanLinks:
    """The states and the driver of a model as the links of a plan. Outputs get their positions at the first answer."""

    def __init__(self, model: ModelConfig, called: Called) -> None:
        self._model, self._called = model, called
        self._states: list[dict[str, Any]] = []
        self._token: dict[str, dict[str, int]] = {"output": {}, "input": {}}
        self._resolved: set[str] = set()
        if model.driver is not None:
            self._token["input"] = {
                method: self._position(method, model.driver.input)
                for method, (inputs, _) in called.items()
                if model.driver.input in [spec.name for spec in inputs]
            }

    def plan(self, steps: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Return the plan whose steps have tensors in the place of files."""
        sequences = [
            [{**step, "inputs": [step["fixed"].get(spec.name) for spec in self._specs(step)]} for step in listed]
            for listed in steps
        ]
        token = None if self._model.driver is None else self._token
        return {"states": self._states, "token": token, "sequences": sequences}

    def named(self, steps: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[dict[str, Any]]]:
        """Return the steps of the stored plan, which has the names of the fixed inputs in the place of files."""
        return [
            [
                {
                    "method": step["method"],
                    "inputs": [spec.name if spec.name in step["fixed"] else None for spec in self._specs(step)],
                    "keep": step["keep"],
                }
                for step in listed
            ]
            for listed in steps
        ]

    def read(self, method: str, index: int, fixed: torch.Tensor | None) -> Any:
        spec = self._called[method][0][index]
        value = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) if fixed is None else fixed
        return value.clone().numpy()

    def resolve(self, method: str, outputs: list[str]) -> None:
        """Add the links of a method's outputs, whose names are known from its first answer."""
        if method in self._resolved:
            return
        self._resolved.add(method)
        for number, state in enumerate(self._model.states or ()):
            if (state.method or METHOD) != method:
                continue
            reader = state.to_method or state.method or METHOD
            self._states.append(
                {
                    "method": method,
                    "output": _output(f"model.states[{number}].output", state.output, method, outputs),
                    "to_method": reader,
                    "input": self._position(reader, state.input),
                    "update": state.update,
                    "axis": state.axis,
                }
            )
        driver = self._model.driver
        if driver is not None and driver.output in outputs:
            self._token["output"][method] = outputs.index(driver.output)
        elif driver is not None and method in self._token["input"]:
            _output("model.driver.output", driver.output, method, outputs)

    def _specs(self, step: Mapping[str, Any]) -> list[InputConfig]:
        return self._called[step["method"]][0]

    def _position(self, method: str, name: str) -> int:
        return [spec.name for spec in self._called[method][0]].index(name)


def _output(key: str, name: str, method: str, outputs: list[str]) -> int:
    if name not in outputs:
        raise RequestError(f"{key}={name}: {method} has the outputs {', '.join(outputs)}")
    return outputs.index(name)


def _steps(called: Called, where: str, sequence: Any) -> list[dict[str, Any]]:
    """Return the steps of a sequence, checked, with all of their keys."""
    if not isinstance(sequence, Mapping) or not isinstance(sequence.get("steps"), list) or not sequence["steps"]:
        raise RequestError(f"{where} is not a mapping with the key 'steps', a list of one or more steps")
    return [_step(called, f"{where}, step {number}", step) for number, step in enumerate(sequence["steps"])]


def _step(called: Called, where: str, step: Any) -> dict[str, Any]:
    if not isinstance(step, Mapping) or not isinstance(step.get("inputs"), Mapping):
        raise RequestError(f"{where} is not a mapping with the key 'inputs'")
    method = str(step.get("method") or (next(iter(called)) if len(called) == 1 else ""))
    if method not in called:
        raise RequestError(f"{where} has the method {method or 'null'}; the model has {', '.join(called)}")
    specs = {spec.name: spec for spec in called[method][0]}
    fixed: dict[str, torch.Tensor] = {}
    for name, value in step["inputs"].items():
        if name not in specs:
            raise RequestError(f"{where} has the input {name}; {method} has the inputs {', '.join(specs)}")
        tensor, spec = torch.as_tensor(value), specs[name]
        got = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        if got != f"{spec.dtype}{list(spec.shape)}":
            raise RequestError(f"{where}: input {name} is {got}; {method} takes {spec.dtype}{list(spec.shape)}")
        fixed[name] = tensor
    keep = step.get("keep")
    return {
        "method": method,
        "fixed": fixed,
        "keep": None if keep is None else int(keep),
        "label": step.get("label"),
        "dump": False,
    }


def _force(
    driver: DriverConfig,
    called: Called,
    steps: Sequence[Sequence[dict[str, Any]]],
    tokens: Mapping[tuple[int, int], int | None],
) -> None:
    """Give every step that would read a token of the device the token that eager PyTorch chose."""
    for sequence, listed in enumerate(steps):
        for number, step in enumerate(listed):
            spec = next((spec for spec in called[step["method"]][0] if spec.name == driver.input), None)
            token = tokens.get((sequence, number - 1))
            if spec is not None and driver.input not in step["fixed"] and token is not None:
                step["fixed"][driver.input] = torch.full(spec.shape, token, dtype=getattr(torch, spec.dtype))
