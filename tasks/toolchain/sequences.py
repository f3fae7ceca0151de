"""The samples of a model with states: eager PyTorch runs sequences of steps, and every step is a sample of its method.

The loop is that of the runner, so that a device runs the same steps in the same way.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qnnsweep.conf.models import DriverConfig, InputConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import Driven, Place, PlannedStep, StateLink, StepPlan, TokenRule
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.tensors import flat_outputs, put_tensors

Called = Mapping[str, tuple[list[InputConfig], Callable[[tuple[torch.Tensor, ...]], object]]]
"""Per method, its inputs, and a function that returns its answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrivenSamples:
    """The steps of sequences as the samples of the methods, in the order of the steps."""

    samples: Mapping[str, list[Mapping[str, Any]]]
    positions: Mapping[str, list[Place]]
    driven: Driven | None  # None without a store


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A step as a source yields it, after its check."""

    method: str
    fixed: dict[str, torch.Tensor]
    keep: int | None
    label: Any


def driven_samples(
    model: ModelConfig,
    called: Called,
    sequences: Sequence[Any],
    key: str,
    store: Store | None,
    vocabulary: Sequence[str] | None = None,
) -> DrivenSamples:
    """Run every sequence in eager PyTorch. Return the samples of every method, in the order of the steps.

    `key`: the source of the sequences in messages. `vocabulary`: the texts of the tokens. Raises RequestError if a
    sequence does not match the configuration.
    """
    steps = [_steps(called, f"{key}: sequence {number}", sequence) for number, sequence in enumerate(sequences)]
    names = [str(sequence.get("name") or f"sequence {number}") for number, sequence in enumerate(sequences)]
    samples: dict[str, list[Mapping[str, Any]]] = {method: [] for method in called}
    positions: dict[str, list[Place]] = {method: [] for method in called}
    tokens: dict[tuple[int, int], int | None] = {}
    plan, fixed = _GrowingPlan(model, called, steps), _fixed(steps)

    def read(method: str, index: int, key: str | None) -> Any:
        spec = called[method][0][index]
        value = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) if key is None else fixed[key]
        return value.clone().numpy()

    def call(_: tuple[int, int], step: PlannedStep, inputs: runner.Arrays) -> runner.Arrays:
        answer = flat_outputs(called[step.method][1](tuple(torch.from_numpy(array.copy()) for array in inputs)))
        plan.resolve(step.method, list(answer))
        return [tensor.contiguous().numpy() for tensor in answer.values()]

    with torch.no_grad():
        for (sequence, number), inputs, _, token in runner.steps_of(plan, read, call):
            step = steps[sequence][number]
            specs = called[step.method][0]
            values = {spec.name: torch.from_numpy(array) for spec, array in zip(specs, inputs, strict=True)}
            name = f"{names[sequence]}, step {number}"
            origin = sequences[sequence].get("origin")
            samples[step.method].append({"inputs": values, "name": name, "label": step.label, "origin": origin})
            positions[step.method].append(Place(sequence=sequence, step=number))
            tokens[sequence, number] = token
    driven = None
    if store is not None:
        if model.driver is not None and model.driver.tokens == "teacher_forced":
            _force(model.driver, called, steps, tokens)
        driven = Driven(
            plan=StepPlan(links=tuple(plan.links), tokens=tuple(plan.tokens), sequences=_planned(called, steps)),
            fixed=put_tensors(store, _fixed(steps)),
            names=tuple(names),
            vocabulary=None if vocabulary is None else store.put_bytes(json.dumps(list(vocabulary)).encode()),
        )
    return DrivenSamples(samples=samples, positions=positions, driven=driven)


def _planned(called: Called, steps: Sequence[Sequence[_Step]]) -> tuple[tuple[PlannedStep, ...], ...]:
    return tuple(
        tuple(
            PlannedStep(
                method=step.method,
                inputs=tuple(
                    _key(sequence, number, spec.name) if spec.name in step.fixed else None
                    for spec in called[step.method][0]
                ),
                keep=step.keep,
            )
            for number, step in enumerate(listed)
        )
        for sequence, listed in enumerate(steps)
    )


def _fixed(steps: Sequence[Sequence[_Step]]) -> dict[str, torch.Tensor]:
    return {
        _key(sequence, number, name): value
        for sequence, listed in enumerate(steps)
        for number, step in enumerate(listed)
        for name, value in step.fixed.items()
    }


def _key(sequence: int, number: int, name: str) -> str:
    return f"{sequence}/{number}/{name}"


class _GrowingPlan:
    """A plan for the runner. Its links and tokens get the positions of a method's outputs at the first answer."""

    def __init__(self, model: ModelConfig, called: Called, steps: Sequence[Sequence[_Step]]) -> None:
        self._model, self._called = model, called
        self._resolved: set[str] = set()
        self.sequences = _planned(called, steps)
        self.links: list[StateLink] = []
        name = model.driver.input if model.driver is not None else None
        inputs = {method: [spec.name for spec in specs] for method, (specs, _) in called.items()}
        self.tokens = [
            TokenRule(method=method, output=None, input=names.index(name))
            for method, names in inputs.items()
            if name is not None and name in names
        ]

    def resolve(self, method: str, outputs: list[str]) -> None:
        """Add the links of a method's outputs, whose names are known from its first answer."""
        if method in self._resolved:
            return
        self._resolved.add(method)
        for number, state in enumerate(self._model.states or ()):
            if (state.method or METHOD) != method:
                continue
            reader = state.to_method or state.method or METHOD
            link = StateLink(
                method=method,
                output=_output(f"model.states[{number}].output", state.output, method, outputs),
                to_method=reader,
                input=[spec.name for spec in self._called[reader][0]].index(state.input),
                update=state.update,
                axis=state.axis,
            )
            self.links.append(link)
        driver, rule = self._model.driver, next((rule for rule in self.tokens if rule.method == method), None)
        if driver is not None and (rule is not None or driver.output in outputs):
            position = _output("model.driver.output", driver.output, method, outputs)
            others = [other for other in self.tokens if other is not rule]
            new = replace(rule or TokenRule(method=method, output=None, input=None), output=position)
            self.tokens = [*others, new]


def _output(key: str, name: str, method: str, outputs: list[str]) -> int:
    if name not in outputs:
        raise RequestError(f"{key}={name}: {method} has the outputs {', '.join(outputs)}")
    return outputs.index(name)


def _steps(called: Called, where: str, sequence: Any) -> list[_Step]:
    """Return the steps of a sequence, checked, with all of their keys."""
    if not isinstance(sequence, Mapping) or not isinstance(sequence.get("steps"), list) or not sequence["steps"]:
        raise RequestError(f"{where} is not a mapping with the key 'steps', a list of one or more steps")
    return [_step(called, f"{where}, step {number}", step) for number, step in enumerate(sequence["steps"])]


def _step(called: Called, where: str, step: Any) -> _Step:
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
    return _Step(method=method, fixed=fixed, keep=None if keep is None else int(keep), label=step.get("label"))


def _force(
    driver: DriverConfig, called: Called, steps: Sequence[Sequence[_Step]], tokens: Mapping[tuple[int, int], int | None]
) -> None:
    """Give every step that would read a token of the device the token that eager PyTorch chose."""
    for sequence, listed in enumerate(steps):
        for number, step in enumerate(listed):
            spec = next((spec for spec in called[step.method][0] if spec.name == driver.input), None)
            token = tokens.get((sequence, number - 1))
            if spec is not None and driver.input not in step.fixed and token is not None:
                step.fixed[driver.input] = torch.full(spec.shape, token, dtype=getattr(torch, spec.dtype))
