"""The evaluation of many samples with the model of the device's arithmetic, against eager PyTorch."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from numpy.typing import NDArray

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.sample_files import stored_samples
from qnnsweep.tasks.numerics.interval import share
from qnnsweep.tasks.numerics.metrics import top1
from qnnsweep.tasks.numerics.noise import decibels
from qnnsweep.tasks.numerics.samples import sample_noise
from qnnsweep.tasks.records import ExportedMethod, LoweredMethod, LoweredProgram, Simulated, StepPlan
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.host_steps import HostMethod, outputs_of_steps
from qnnsweep.tasks.toolchain.saved_program import exported_call
from qnnsweep.tasks.toolchain.simulator import Simulator
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

Array = NDArray[Any]
Inputs = tuple[torch.Tensor, ...]
Sample = tuple[str, Callable[[], Inputs], int | None]
"""The name of a sample of a file, its inputs and its label."""


def evaluated(
    program: LoweredProgram, method: str | None, store: Store, place: str | None, on_sample: Callable[[int, int], None]
) -> Simulated:
    """Return the measures of a program on the samples of a file, or on its own.

    `method`: the only one whose outputs count; None for all. `place`: see `stored_samples`; None for the samples with
    which the program was measured. With states, these are the steps of its sequences, of which each reads the states
    that the steps before it wrote; their tokens are not counted, because those of a sequence depend on each other.
    `on_sample`: called with the number of samples done and of all samples. Raises RequestError, and EvidenceError if
    the host cannot compute a sample.
    """
    make_deterministic()
    counted = chosen_methods(program, method)
    total, answers = _answers(program, counted, place, store)
    names, noise, classes = list[str](), list[float](), list[tuple[int | None, int | None, int | None]]()
    on_sample(0, total)
    for done, answer in enumerate(answers, 1):
        names.append(answer.sample if len(counted) == 1 else f"{answer.method}: {answer.sample}")
        noise.append(sample_noise(answer.pairs))
        actual, reference = map(top1, answer.pairs[0])
        if program.model.driven is None:
            classes.append((actual, reference, answer.label))
        on_sample(done, total)
    judged = [(actual, eager, label) for actual, eager, label in classes if actual is not None and eager is not None]
    labelled = [(actual == label, eager == label) for actual, eager, label in judged if label is not None]
    agreement, accuracy = share([actual == eager for actual, eager, _ in judged]), share([one for one, _ in labelled])
    worst = max(range(len(noise)), key=lambda number: noise[number])
    return Simulated(
        samples=len(noise),
        snr_db=decibels(noise[worst]),
        mean_snr_db=decibels(fmean(noise)),
        worst_sample=names[worst],
        top1_agreement=agreement[0],
        top1_agreement_low=agreement[1],
        top1_agreement_high=agreement[2],
        accuracy=accuracy[0],
        accuracy_low=accuracy[1],
        accuracy_high=accuracy[2],
        accuracy_eager=share([eager for _, eager in labelled])[0],
    )


def chosen_methods(program: LoweredProgram, method: str | None) -> list[LoweredMethod]:
    """Return the method with this name; all for None. Raises RequestError if there is no such method."""
    found = [one for one in program.methods if method in (None, one.exported.name)]
    if not found:
        problem = f"is none of its methods: {', '.join(one.exported.name for one in program.methods)}"
        raise RequestError(problem, key="--method", value=method)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """The outputs of a sample, each beside that of eager PyTorch."""

    method: str
    sample: str
    pairs: Sequence[tuple[Array, Array]]
    label: int | None


def _answers(
    program: LoweredProgram, counted: Sequence[LoweredMethod], place: str | None, store: Store
) -> tuple[int, Iterator[_Answer]]:
    """Return the number of samples of the methods that count, and the answers to them. Raises RequestError."""
    driven, names = program.model.driven, [one.exported.name for one in counted]
    if driven is not None:
        if place is not None:
            problem = "a model with states is simulated with the sequences with which it was measured"
            raise RequestError(problem, key="--samples", value=place)
        total = sum(step.method in names for steps in driven.plan.sequences for step in steps)
        return total, _steps(program.methods, names, driven.plan, store)
    if place is None:
        total = sum(len(one.exported.sample_names) for one in counted)
        return total, (answer for one in counted for answer in _own(one, store))
    if len(counted) > 1:
        problem = f"the samples are for one method: choose it with --method, of {', '.join(names)}"
        raise RequestError(problem, key="--samples", value=place)
    samples = _of_file(place, counted[0])
    return len(samples), _of_samples(counted[0], samples, store)


def _steps(
    methods: Sequence[LoweredMethod], counted: Collection[str], plan: StepPlan, store: Store
) -> Iterator[_Answer]:
    """Yield the answers to all steps of the methods that count."""
    by_name = {method.exported.name: method.exported for method in methods}
    eager = {name: read_tensors(store, by_name[name].outputs_eager) for name in counted}
    hosts = [
        HostMethod(
            exported=method.exported, samples=_samples(method, store), run=partial(_outputs, Simulator(method, store))
        )
        for method in methods
    ]
    for name, number, outputs in outputs_of_steps(hosts, plan):
        if name in counted:
            yield _stored(by_name[name], number, outputs, eager[name])


def _own(lowered: LoweredMethod, store: Store) -> Iterator[_Answer]:
    """Yield the answers to the samples with which a method was measured."""
    simulator, eager = Simulator(lowered, store), read_tensors(store, lowered.exported.outputs_eager)
    for number, inputs in enumerate(_samples(lowered, store)):
        yield _stored(lowered.exported, number, _outputs(simulator, inputs), eager)


def _stored(
    exported: ExportedMethod, number: int, outputs: Sequence[torch.Tensor], eager: Mapping[str, torch.Tensor]
) -> _Answer:
    """Return the answer to a sample of the export, beside the stored outputs of eager PyTorch."""
    references = [eager[tensor_key(number, index)].numpy() for index in range(len(exported.outputs))]
    return _Answer(
        method=exported.name,
        sample=exported.sample_names[number],
        pairs=[(one.numpy(), other) for one, other in zip(outputs, references, strict=True)],
        label=exported.labels[number],
    )


def _of_samples(lowered: LoweredMethod, samples: Sequence[Sample], store: Store) -> Iterator[_Answer]:
    """Yield the answers to the samples of a file, for which eager PyTorch is run as well."""
    simulator, eager = Simulator(lowered, store), exported_call(store, lowered.exported)
    for name, inputs, label in samples:
        tensors = inputs()
        outputs = [one.numpy() for one in _outputs(simulator, tensors)]
        pairs = list(zip(outputs, eager(*tensors), strict=True))
        yield _Answer(method=lowered.exported.name, sample=name, pairs=pairs, label=label)


def _outputs(simulator: Simulator, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    outputs = simulator(*inputs)
    return (outputs,) if isinstance(outputs, torch.Tensor) else outputs


def _samples(lowered: LoweredMethod, store: Store) -> list[Inputs]:
    exported = lowered.exported
    names = [spec.name for spec in exported.inputs]
    return read_samples(store, exported.evaluation, names, len(exported.sample_names))


def _of_file(place: str, lowered: LoweredMethod) -> list[Sample]:
    found = stored_samples(place)
    if found.kind != "inputs":
        problem = f"{found.words}: a simulation needs the inputs of `forward`, as .npy, .npz or .safetensors"
        raise RequestError(problem, key="--samples", value=place)
    if not found.samples:
        raise RequestError("no sample", key="--samples", value=place)
    return [(one.name, lambda one=one: _inputs(one.read(), lowered, place), one.label) for one in found.samples]


def _inputs(value: Inputs | Mapping[str, torch.Tensor] | torch.Tensor, lowered: LoweredMethod, place: str) -> Inputs:
    """Return the inputs of a sample in the order of `forward`, with the dtypes of the program."""
    specs = lowered.exported.inputs
    if isinstance(value, torch.Tensor):
        value = (value,)
    if not isinstance(value, tuple):
        names = {spec.name for spec in specs}
        if set(value) != names:
            problem = f"a sample has {', '.join(sorted(value))}; the program takes {', '.join(sorted(names))}"
            raise RequestError(problem, key="--samples", value=place)
        value = tuple(value[spec.name] for spec in specs)
    return tuple(
        tensor.to(getattr(torch, spec.dtype))
        if tensor.is_floating_point() == spec.dtype.startswith("float")
        else tensor
        for tensor, spec in zip(value, specs, strict=False)
    ) + tuple(value[len(specs) :])
