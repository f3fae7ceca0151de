"""Our own way from the graph to the program, against ExecuTorch's official call on the same graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import LoweredProgram

import executorch_oracle  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import StartRunner

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def lowered_fp16(resources: Resources, lowered: LoweredProgram) -> tuple[Request, LoweredProgram]:
    """The float sister of `lowered`: the same exported model in fp16."""
    ask = load(["model=digits_cnn", "scheme=fp16", "soc=SM8650"]).cells[0].request
    model = lowered.quantized.exported
    passed = quantize(model, ask.scheme, ask.backend.kind, store=resources.store, workers=resources.workers)
    options = replace(lowering_options(ask), operator_samples=0, dump_operators=False)
    return ask, lower(passed, ask.soc, options, store=resources.store, workers=resources.workers)


def compare_with_official(
    ask: Request,
    ours: LoweredProgram,
    resources: Resources,
    start_runner: StartRunner,
    images: list[tuple[bytes]],
    folder: Path,
) -> None:
    store = resources.store
    theirs = resources.workers.call(
        "lower", executorch_oracle.lower_officially, ours.quantized, ask.scheme, ask.soc, store
    ).value
    outputs_of_runs = []
    for name, program in (("ours", ours.program), ("theirs", theirs)):
        done = start_runner(folder / name, store.read(program), images)
        assert done.exit_code == 0, done.stderr
        outputs_of_runs.append(done.outputs)
    assert len(outputs_of_runs[0]) == len(images) == 8
    assert len(set(outputs_of_runs[0].values())) == 8
    assert outputs_of_runs[0] == outputs_of_runs[1]
    assert ours.program.size == pytest.approx(theirs.size, rel=0.01)


def test_a_quantized_program_computes_the_bits_that_the_official_one_does(
    request_8a8w: Request,
    lowered: LoweredProgram,
    resources: Resources,
    start_runner: StartRunner,
    images: list[tuple[bytes]],
    tmp_path: Path,
) -> None:
    compare_with_official(request_8a8w, lowered, resources, start_runner, images, tmp_path)


def test_a_float_program_computes_the_bits_that_the_official_one_does(
    lowered_fp16: tuple[Request, LoweredProgram],
    resources: Resources,
    start_runner: StartRunner,
    images: list[tuple[bytes]],
    tmp_path: Path,
) -> None:
    compare_with_official(*lowered_fp16, resources, start_runner, images, tmp_path)
