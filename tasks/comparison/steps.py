"""The error of a model with states along its steps.

The inputs of every step on the device follow from the outputs that the device returned, by the same loop as on the
device. Eager PyTorch computes each step again from these inputs. Runs in a worker process.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from qnnsweep.tasks.comparison.diverged import Place, diverged
from qnnsweep.tasks.comparison.same_tokens import Read, other_methods
from qnnsweep.tasks.comparison.step_mistakes import (
    EXAMINED,
    SUSPECT_DB,
    Ran,
    Roles,
    first_wrong_state,
    lowest_snr_db,
    mistake_of,
    roles_of,
    same_whatever_is_read,
)
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.dequantize import quantize
from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.numerics.token_scores import token_scores
from qnnsweep.tasks.records import (
    Capture,
    CapturedMethod,
    Driven,
    LoweredMethod,
    LoweredProgram,
    PlannedStep,
    StepComparison,
)
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.records.stages import by_place
from qnnsweep.tasks.records.vocabulary import StepOrigin
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.entrypoints import exported_function

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Step:
    inputs: Sequence[Array]
    outputs: Sequence[Array]
    token: int | None


def compare_steps(
    lowered: LoweredProgram, capture: Capture, store: Store
) -> tuple[list[frozenset[int]], tuple[StepComparison, ...]]:
    """Return the diverged samples of every method, and the comparison of every step, sequence by sequence.

    A sample is diverged after the first step of its sequence whose token differs from that of eager PyTorch's own run.
    Without states, there are no steps.
    """
    driven = lowered.model.driven
    if driven is None:
        return [frozenset()] * len(lowered.methods), ()
    methods, sequences, device, eager, after = _runs(driven, lowered, capture, store)
    if driven.vocabulary is not None:
        sequences.vocabulary = json.loads(store.read(driven.vocabulary))
    stepped: dict[Place, Sequence[Array]] = {}
    for method in methods:
        stepped |= {place: method.run(device[place].inputs) for place in method.sample}
        method.confirm_inputs([device[place].inputs for place in method.sample])
    others = other_methods(sequences.read_tokens(device), driven.plan.links)
    mistakes = sequences.mistakes(device, eager, stepped)
    samples = [frozenset(method.sample[place] for place in after & method.sample.keys()) for method in methods]
    return samples, tuple(
        replace(
            sequences.compared(place, device[place], eager[place], stepped[place], place in after),
            **mistakes.get(place, {}),
            other_method_differing=others[place].differing if place in others else None,
            other_method_snr_db=others[place].snr_db if place in others else None,
        )
        for place in device
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsOnDevice:
    """The steps of one method of a model with states, on the inputs that they had on the device."""

    outputs: Mapping[str, Array]
    """The outputs of eager PyTorch for the captured steps, by `<sample>/<output index>`."""
    diverged: frozenset[int]
    """The samples for which the device read other tokens than eager PyTorch's own run."""


def steps_on_device(lowered: LoweredProgram, capture: Capture, number: int, store: Store) -> StepsOnDevice | None:
    """Return the steps of the method with the number `number`.

    Return None without states: then the device had the inputs of eager PyTorch's own run.
    """
    driven = lowered.model.driven
    if driven is None:
        return None
    methods, _, device, _, after = _runs(driven, lowered, capture, store)
    method, captured = methods[number], capture.methods[number].captured
    return StepsOnDevice(
        outputs={
            tensor_key(sample, index): output
            for place, sample in method.sample.items()
            if sample in captured
            for index, output in enumerate(method.run(device[place].inputs))
        },
        diverged=frozenset(method.sample[place] for place in after & method.sample.keys()),
    )


def _runs(
    driven: Driven, lowered: LoweredProgram, capture: Capture, store: Store
) -> tuple[list["_Method"], "_Sequences", dict[Place, _Step], dict[Place, _Step], set[Place]]:
    """Return the methods, their sequences, the steps on the device and in eager PyTorch, and the diverged steps."""
    methods = [_Method(*pair, store) for pair in zip(lowered.methods, capture.methods, strict=True)]
    sequences = _Sequences(driven, methods, load(store.read(driven.fixed)))
    device, eager = sequences.run(lambda method: method.device), sequences.run(lambda method: method.eager)
    after = diverged(driven.plan, {place: (device[place].token, eager[place].token) for place in device})
    return methods, sequences, device, eager, after


class _Method:
    """A method with its outputs on the device and in eager PyTorch's own run."""

    def __init__(self, lowered: LoweredMethod, capture: CapturedMethod, store: Store) -> None:
        self.lowered, self.exported = lowered, lowered.exported
        self.name = self.exported.name
        self.device: Mapping[str, Array] = load(store.read(capture.outputs))
        self.eager: Mapping[str, Array] = load(store.read(self.exported.outputs_eager))
        self.debug: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        for files in capture.debug:
            self.debug |= load(store.read(files.outputs))
            self.inputs |= load(store.read(files.inputs)) if files.inputs else {}
        self.run: Callable[[Sequence[Array]], list[Array]] = exported_function(self.exported, store)
        self.sample = by_place(self.exported.positions)

    def confirm_inputs(self, inputs: Sequence[Sequence[Array]]) -> None:
        """Raise EvidenceError if the inputs of a captured step on the device do not follow from its outputs."""
        for key, array in self.inputs.items():
            sample, _, name = key.partition("/")
            index = [spec.name for spec in self.exported.inputs].index(name)
            if inputs[int(sample)][index].tobytes() != array.tobytes():
                raise EvidenceError(f"{self.name}, sample {sample}: {name} does not follow from the device's outputs")


class _Sequences:
    """The plan of all methods."""

    def __init__(self, driven: Driven, methods: Sequence[_Method], fixed: Mapping[str, Array]) -> None:
        self._driven, self._plan, self._fixed = driven, driven.plan, fixed
        self.vocabulary: Sequence[str] = ()
        self._methods = {method.name: method for method in methods}

    def run(self, outputs_of: Callable[[_Method], Mapping[str, Array]]) -> dict[Place, _Step]:
        """Return the steps of a run whose outputs are known."""

        def read(name: str, index: int, key: str | None) -> Array:
            spec = self._methods[name].exported.inputs[index]
            return np.zeros(spec.shape, spec.dtype) if key is None else self._fixed[key].copy()

        def call(place: Place, step: PlannedStep, _: runner.Arrays) -> list[Array]:
            method = self._methods[step.method]
            sample, count = method.sample[place], len(method.exported.outputs)
            return [outputs_of(method)[tensor_key(sample, index)] for index in range(count)]

        steps = runner.steps_of(self._plan, read, call)
        return {place: _Step(inputs, outputs, token) for place, inputs, outputs, token in steps}

    def read_tokens(self, steps: Mapping[Place, _Step]) -> Iterator[Read]:
        """Yield every step with the tokens that it read, if the model has a driver."""
        for place, step in steps.items():
            planned = self._planned(place)
            index = self._position(planned, "input")
            if index is not None:
                tokens = step.inputs[index].reshape(-1)[: planned.keep].tolist()
                yield place, planned.method, tokens, step.outputs, planned.keep

    def _planned(self, place: Place) -> PlannedStep:
        return self._plan.sequences[place[0]][place[1]]

    def _position(self, step: PlannedStep, side: str) -> int | None:
        return runner.token_position(self._plan, step.method, side)

    def mistakes(
        self, device: Mapping[Place, _Step], eager: Mapping[Place, _Step], stepped: Mapping[Place, Sequence[Array]]
    ) -> dict[Place, dict[str, Any]]:
        """Return, per step that is examined, its mistake and its first wrong state."""
        roles = {
            name: roles_of(self._plan, name, method.exported.inputs, method.exported.outputs)
            for name, method in self._methods.items()
        }
        steps: dict[Place, tuple[Roles, Ran]] = {}
        before: tuple[Place, int] | None = None
        for place, step in device.items():
            planned = self._planned(place)
            of_method = roles[planned.method]
            if of_method is not None:
                last = before[1] if before is not None and before[0] == (place[0], place[1] - 1) else None
                steps[place] = of_method, Ran(inputs=step.inputs, outputs=step.outputs, keep=planned.keep, before=last)
                before = place, int(step.inputs[of_method.token].reshape(-1)[: planned.keep][-1])
        lowest = {place: lowest_snr_db(*step, stepped[place]) for place, step in steps.items()}
        wrong = [place for place in sorted(lowest, key=lambda place: lowest[place]) if lowest[place] < SUSPECT_DB]
        found: dict[Place, dict[str, Any]] = {}
        for place in wrong[:EXAMINED]:
            method = self._methods[self._planned(place).method]
            written = first_wrong_state(*steps[place], stepped[place])
            found[place] = {
                "mistake": mistake_of(*steps[place], method.run),
                "first_wrong_state": None if written is None else self._state_name(method.name, written),
            }
        for places in self._same_place(steps):
            scores = steps[places[0]][0].scores
            on_device, in_eager = ([run[place].outputs[scores] for place in places] for run in (device, eager))
            read = [steps[place][1].inputs[steps[place][0].token].reshape(-1).tolist() for place in places]
            if same_whatever_is_read(on_device, in_eager, read):
                for place in places:
                    found[place] = {"first_wrong_state": None, **found.get(place, {}), "mistake": "text_ignored"}
        return found

    def _state_name(self, method: str, output: int) -> str:
        """Return the name of the input that gets an output, such as `k_3`."""
        link = next(link for link in self._plan.links if (link.method, link.output) == (method, output))
        return self._methods[link.to_method].exported.inputs[link.input].name

    def _same_place(self, steps: Iterable[Place]) -> Iterator[list[Place]]:
        """Yield the steps of all sequences that have one number and one method, if there are several."""
        groups: dict[tuple[str, int], list[Place]] = defaultdict(list)
        for place in steps:
            groups[self._planned(place).method, place[1]].append(place)
        yield from (places for places in groups.values() if len(places) > 1)

    def _right_tokens(self, place: Place, rows: int) -> list[int | None]:
        """Return, per row of a step's scores, the token that follows in the text; None where no text says it."""
        sequence, number = place
        step, steps = self._planned(place), self._plan.sequences[sequence]
        method = self._methods[step.method]
        label = method.exported.labels[method.sample[place]]
        after = self._stated(steps[number + 1]) if number + 1 < len(steps) else []
        read = self._stated(step)
        return [*(read[1:rows] or [None] * (rows - 1)), after[0] if after else label]

    def _stated(self, step: PlannedStep) -> list[int]:
        """Return the tokens that the source of the samples states for a step."""
        index = self._position(step, "input")
        key = None if index is None else step.inputs[index]
        return [] if key is None else self._fixed[key].reshape(-1)[: step.keep].tolist()

    def _text(self, token: int | None) -> str | None:
        return None if token is None or token >= len(self.vocabulary) else self.vocabulary[token]

    def compared(
        self, place: Place, device: _Step, eager: _Step, stepped: Sequence[Array], diverged: bool
    ) -> StepComparison:
        step = self._planned(place)
        method, keep = self._methods[step.method], step.keep
        written = method.exported.states or ()
        scores = self._position(step, "output")
        result = method.exported.results[0] if scores is None else scores
        rows = slice(None) if keep is None or scores is None else slice(keep)
        values = [_rows(outputs[result], rows) for outputs in (device.outputs, eager.outputs, stepped)]
        states = [[outputs[index] for index in written] for outputs in (device.outputs, eager.outputs, stepped)]
        total = None if diverged else snr_db(values[0], values[1])
        introduced = snr_db(values[0], values[2])
        inherited = None if diverged else snr_db(values[2], values[1])
        state_total = None if diverged else _lowest(states[0], states[1])
        state_introduced = _lowest(states[0], states[2])
        state_inherited = None if diverged else _lowest(states[2], states[1])
        sample = method.sample[place]
        debug = method.debug.get(tensor_key(sample, result))
        return StepComparison(
            sample=place[0],
            sample_name=self._driven.names[place[0]],
            method=method.exported.method,
            step=place[1],
            method_sample=sample,
            token=device.token,
            token_reference=eager.token,
            text=self._text(device.token),
            text_reference=self._text(eager.token),
            label=method.exported.labels[sample],
            margin=None if scores is None else _margin(_rows(eager.outputs[scores], rows)),
            score_error=None if scores is None else float(np.abs(_signed(values[0], values[2])).max()),
            total_snr_db=total,
            introduced_snr_db=introduced,
            inherited_snr_db=inherited,
            state_total_snr_db=state_total,
            state_introduced_snr_db=state_introduced,
            scores=None
            if diverged or scores is None
            else token_scores(values[0], values[1], self._right_tokens(place, len(values[0]))),
            origin=_origin(diverged, (total, introduced, inherited), (state_total, state_introduced, state_inherited)),
            at_ends=_at_ends(method, device.outputs, written),
            debug_introduced_snr_db=None if debug is None else snr_db(_rows(debug, rows), values[2]),
        )


def _rows(scores: Array, rows: slice) -> Array:
    return scores.reshape(-1, scores.shape[-1])[rows]


def _signed(actual: Array, reference: Array) -> Array:
    return actual.astype(np.float64) - reference.astype(np.float64)


def _lowest(actual: Sequence[Array], reference: Sequence[Array]) -> float | None:
    ratios = [snr_db(*pair) for pair in zip(actual, reference, strict=True)]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _margin(rows: Array) -> float | None:
    """Return by how much the highest score of the last row exceeds the second highest."""
    last = np.sort(rows[-1].astype(np.float64))
    return float(last[-1] - last[-2]) if last.size > 1 else None


Parts = tuple[float | None, float | None, float | None]
"""The total, the introduced and the inherited SNR of the same value."""


def _origin(diverged: bool, result: Parts, states: Parts) -> StepOrigin:
    """Return the origin of the value with the lowest total SNR: the step's result, or its states."""
    if diverged:
        return "diverged"
    totals = [parts for parts in (result, states) if parts[0] is not None]
    if not totals:
        return "none"
    _, introduced, inherited = min(totals, key=lambda parts: parts[0] or 0.0)
    if introduced is None or (inherited is not None and inherited < introduced):
        return "inherited"
    return "introduced"


def _at_ends(method: _Method, outputs: Sequence[Array], written: Sequence[int]) -> float | None:
    """Return the share of the elements of the written states that have the first or the last code of their grid."""
    ends = size = 0
    for index in written:
        qparams = method.lowered.output_grid(index)
        if qparams is not None:
            codes = quantize(outputs[index], qparams)
            ends, size = ends + int(np.isin(codes, (qparams.quant_min, qparams.quant_max)).sum()), size + codes.size
    return ends / size if size else None
