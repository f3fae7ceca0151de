"""Silero's detector of speech: its steps are those of the package, and its states show where an error began."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import comparison_options, lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.models.silero_vad import CHUNK, PAUSE, frames, listening, silero_vad, sound
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import Bundle, LoweredProgram, StepComparison

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.slow


def probabilities(steps: int) -> Iterator[float]:
    model = silero_vad()
    hidden = cell = torch.zeros(1, 128)
    for step in listening(1, split="evaluation", steps=steps)[0]["steps"]:
        answer = model(step["inputs"]["samples"], hidden, cell)
        hidden, cell = answer["hidden"], answer["cell"]
        yield float(answer["speech"])


def test_the_probabilities_are_those_of_the_package() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        from silero_vad import load_silero_vad

        package = load_silero_vad()
    with torch.no_grad():
        chunks = sound("evaluation", 200).split(CHUNK)
        assert [float(package(chunk[None], 16000)) for chunk in chunks] == [*probabilities(200)]


def test_a_sentence_is_speech_and_the_pause_before_it_is_not() -> None:
    pause = PAUSE // CHUNK
    speech = [value > 0.5 for value in probabilities(pause + 60)]
    assert speech[:pause] == [False] * pause
    assert sum(speech[pause + 5 :]) > 50


def test_a_step_reads_its_chunk_with_the_samples_before_it_and_its_mirrored_end() -> None:
    samples = torch.arange(2 * CHUNK, dtype=torch.float32)
    first, second = frames(samples)
    assert first.tolist() == [0] * 64 + [*range(512)] + [*range(510, 446, -1)]
    assert second.tolist() == [*range(448, 1024), *range(1022, 958, -1)]


def test_the_samples_fit_the_configured_inputs() -> None:
    model = load(["model=silero_vad"]).cells[0].request.model
    (sequence,) = listening(1, split="calibration", steps=3)
    assert [list(step["inputs"]["samples"].shape) for step in sequence["steps"]] == [model.inputs[0].shape] * 3


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # so that no installed package is found
    with pytest.raises(RequestError) as refused:
        silero_vad()
    assert str(refused.value) == (
        "model silero_vad needs the optional extra speech (the package silero-vad is not installed): "
        "pip install 'qnnsweep[speech]'"
    )


WRITTEN = "        arrays = run(program, step.method, inputs, arguments, elapsed_ms)\n"
WRONG_STATE = f"{WRITTEN}        if place == (0, 20):\n            arrays[1] = arrays[1] + 0.5\n"


@pytest.mark.toolchain
def test_a_wrong_state_is_introduced_where_it_is_written_and_inherited_after_it(resources: Resources) -> None:
    steps = ["model.calibration.arguments.steps=2", "model.evaluation.arguments.steps=24"]
    request = load(["model=silero_vad", "scheme=fp16", "soc=SM8650", *steps]).cells[0].request
    tools: dict[str, Any] = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(request.model, "", **tools), request.scheme, request.backend.kind, **tools)
    lowered = lower(quantized, request.soc, replace(lowering_options(request), dump_operators=False), **tools)
    packed = bundle(lowered, request.measure, store=resources.store)
    clean = steps_of(request, lowered, packed, resources)
    source = resources.store.read(packed.runner).decode()
    assert WRITTEN in source
    runner = resources.store.put_bytes(source.replace(WRITTEN, WRONG_STATE).encode())
    blobs = tuple(runner if blob == packed.runner else blob for blob in packed.blobs)
    wrong = steps_of(request, lowered, replace(packed, runner=runner, blobs=blobs), resources)
    assert [step.origin for step in wrong[20:]] == ["introduced", "inherited", "inherited", "inherited"]
    assert wrong[:20] == clean[:20]
    assert wrong[20].state_introduced_snr_db < 10 < 30 < clean[20].state_introduced_snr_db  # type: ignore[operator]
    # The later steps compute as well as before: only the states that they read are wrong.
    for step, before in zip(wrong[21:], clean[21:], strict=True):
        assert step.state_total_snr_db + 10 < before.state_total_snr_db  # type: ignore[operator]
        assert step.state_introduced_snr_db > 30  # type: ignore[operator]


def steps_of(
    request: Request, lowered: LoweredProgram, packed: Bundle, resources: Resources
) -> tuple[StepComparison, ...]:
    """Run a bundle, and compare its steps."""
    store = resources.store
    capture = measure(packed, (request.device,), None, store=store, farm=resources.farm)
    options = comparison_options(request)
    return compare(lowered, capture, options, store=store, workers=resources.workers).steps
