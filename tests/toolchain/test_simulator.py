"""The model of the device's arithmetic as a module, and the evaluation of samples of a file with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.numerics.metrics import snr_db
from qnnsweep.tasks.records import LoweredMethod, LoweredProgram
from qnnsweep.tasks.toolchain.saved_program import exported_call
from qnnsweep.tasks.toolchain.simulation import evaluated
from qnnsweep.tasks.toolchain.simulator import Simulator
from qnnsweep.tasks.toolchain.tensors import read_samples, read_tensors

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def inputs_of(method: LoweredMethod, resources: Resources) -> torch.Tensor:
    """Return the only input of all samples as one batch."""
    exported = method.exported
    names, count = [spec.name for spec in exported.inputs], len(exported.sample_names)
    return torch.cat([sample[0] for sample in read_samples(resources.store, exported.evaluation, names, count)])


def test_a_batch_gives_the_outputs_of_the_rung_designed_bit_by_bit(
    resources: Resources, lowered: LoweredProgram
) -> None:
    (method,) = lowered.methods
    assert method.outputs_designed is not None
    designed = read_tensors(resources.store, method.outputs_designed)
    batch = inputs_of(method, resources)
    outputs = Simulator(method, resources.store)(batch)
    assert torch.equal(outputs, torch.cat([designed[f"{sample}/0"] for sample in range(len(batch))]))


def test_inputs_that_do_not_fit_are_refused_with_those_that_do(resources: Resources, lowered: LoweredProgram) -> None:
    simulator = Simulator(lowered.methods[0], resources.store)
    takes = f"the program takes float32 {'×'.join(map(str, simulator.inputs[0].shape))}, or a batch of such inputs; "
    for inputs, are in (([torch.zeros(1, 5)], "float32 1×5"), ([], ""), ([torch.tensor(1)], "int64 scalar")):
        with pytest.raises(RequestError) as caught:
            simulator(*inputs)
        assert str(caught.value) == f"{takes}these inputs are {are}"


def test_a_file_of_samples_with_labels_gives_accuracy_and_the_lowest_snr(
    resources: Resources, lowered: LoweredProgram, tmp_path: Path
) -> None:
    (method,), store = lowered.methods, resources.store
    batch = inputs_of(method, resources).flip(-1)  # other samples than those of the run
    simulated, call = Simulator(method, store)(batch), exported_call(store, method.exported)
    eager = torch.cat([torch.from_numpy(call(one[None])[0]) for one in batch])
    labels = eager.argmax(-1)
    labels[0] += 1  # eager PyTorch is wrong about one
    file = tmp_path / "samples.npz"
    np.savez(file, **{method.exported.inputs[0].name: batch.double().numpy(), "label": labels.numpy()})
    seen: list[tuple[int, int]] = []
    found = evaluated(lowered, None, store, str(file), lambda done, total: seen.append((done, total)))
    snrs = [snr_db(one.numpy(), other.numpy()) for one, other in zip(simulated, eager, strict=True)]
    count = len(batch)
    assert (found.samples, seen[-1]) == (count, (count, count))
    assert found.snr_db == pytest.approx(min(snrs), abs=1e-9)
    assert found.worst_sample == f"sample {int(np.argmin(snrs))}"
    assert found.top1_agreement == np.mean((simulated.argmax(-1) == eager.argmax(-1)).numpy())
    assert found.accuracy == np.mean((simulated.argmax(-1) == labels).numpy())
    assert found.accuracy_eager == (count - 1) / count


@pytest.mark.parametrize(
    ("name", "contents", "problem"),
    [
        ("words.txt", "a text", "a simulation needs the inputs of `forward`, as .npy, .npz or .safetensors"),
        ("other.npz", {"pixels": np.zeros((1, 3))}, "a sample has pixels; the program takes"),
    ],
)
def test_a_file_that_has_no_inputs_of_the_program_is_refused(
    name: str, contents: object, problem: str, resources: Resources, lowered: LoweredProgram, tmp_path: Path
) -> None:
    file = tmp_path / name
    if isinstance(contents, dict):
        np.savez(file, **contents)
    else:
        file.write_text(str(contents))
    with pytest.raises(RequestError, match=problem) as caught:
        evaluated(lowered, None, resources.store, str(file), lambda *_: None)
    assert caught.value.key == "--samples"
