"""The evaluation of many samples with the model of the device's arithmetic, against eager PyTorch."""

from collections.abc import Callable, Mapping

import torch

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.sample_files import stored_samples
from qnnsweep.tasks.numerics.interval import share
from qnnsweep.tasks.numerics.metrics import top1
from qnnsweep.tasks.numerics.noise import decibels
from qnnsweep.tasks.numerics.samples import sample_noise
from qnnsweep.tasks.records import LoweredMethod, Simulated
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.saved_program import exported_call
from qnnsweep.tasks.toolchain.simulator import Simulator
from qnnsweep.tasks.toolchain.tensors import read_samples

Inputs = tuple[torch.Tensor, ...]


def evaluated(
    lowered: LoweredMethod, store: Store, place: str | None, on_sample: Callable[[int, int], None]
) -> Simulated:
    """Return the measures of a program on the samples of a file, or on its own.

    `place`: see `stored_samples`; None for the samples with which it was measured. `on_sample`: called with the
    number of samples done and of all samples. Raises RequestError.
    """
    make_deterministic()
    simulator, eager = Simulator(lowered, store), exported_call(store, lowered.exported)
    noise, agreeing, right, right_eager = list[float](), list[bool](), list[bool](), list[bool]()
    names = list[str]()
    samples = _own(lowered, store) if place is None else _of_file(place, lowered)
    for done, (sample, inputs, label) in enumerate(samples):
        on_sample(done, len(samples))
        tensors = inputs()
        actual = simulator(*tensors)
        outputs = (actual,) if isinstance(actual, torch.Tensor) else actual
        pairs = [(one.numpy(), other) for one, other in zip(outputs, eager(*tensors), strict=True)]
        noise.append(sample_noise(pairs))
        names.append(sample)
        classes = [top1(values) for values in pairs[0]]
        if classes[0] is not None and classes[1] is not None:
            agreeing.append(classes[0] == classes[1])
            if label is not None:
                right.append(classes[0] == label)
                right_eager.append(classes[1] == label)
    on_sample(len(samples), len(samples))
    worst = max(range(len(noise)), key=lambda number: noise[number])
    agreement, accuracy = share(agreeing), share(right)
    return Simulated(
        samples=len(noise),
        snr_db=decibels(noise[worst]),
        mean_snr_db=decibels(sum(noise) / len(noise)),
        worst_sample=names[worst],
        top1_agreement=agreement[0],
        top1_agreement_low=agreement[1],
        top1_agreement_high=agreement[2],
        accuracy=accuracy[0],
        accuracy_low=accuracy[1],
        accuracy_high=accuracy[2],
        accuracy_eager=share(right_eager)[0],
    )


Sample = tuple[str, Callable[[], Inputs], int | None]


def _own(lowered: LoweredMethod, store: Store) -> list[Sample]:
    exported = lowered.exported
    names = [spec.name for spec in exported.inputs]
    samples = read_samples(store, exported.evaluation, names, len(exported.sample_names))
    return [
        (name, lambda inputs=inputs: inputs, label)
        for name, inputs, label in zip(exported.sample_names, samples, exported.labels, strict=True)
    ]


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
