"""SoCs that are lowered together share all that does not depend on them; each result equals that of a single SoC."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.records import LoweredProgram
from qnnsweep.tasks.toolchain.workers.supervisor import CallCost

import official_path  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources
    from tests.toolchain.conftest import StartRunner, WorkersWith

pytestmark = pytest.mark.toolchain

SOCS = ("SM8350", "SM8450", "SM8850")
"""Three Hexagon architectures: v68, v69 and v81. The simulator does not compute the same bits for all of them."""


@dataclass(frozen=True, kw_only=True)
class Together:
    requests: list[Request]
    programs: list[LoweredProgram]
    costs: list[CallCost]


@pytest.fixture(scope="module", params=["8a8w", "fp16"])
def together(
    request: pytest.FixtureRequest, resources: Resources, lowered: LoweredProgram, workers_with: WorkersWith
) -> Together:
    """The same quantized model lowered for three SoCs at the same time, the debug programs too."""
    cells = load(["model=digits_cnn", f"scheme={request.param}", f"soc={','.join(SOCS)}"]).cells
    asks = [cell.request for cell in cells if cell.impossible is None]
    workers = workers_with()
    tools: Any = {"store": resources.store, "workers": workers}
    quantized = quantize(lowered.quantized.exported, asks[0].scheme, asks[0].backend.kind, **tools)

    def lower_request(ask: Request) -> LoweredProgram:
        return lower(quantized, ask.soc, replace(lowering_options(ask), operator_samples=1), **tools)

    with ThreadPoolExecutor(3) as pool:
        programs = list(pool.map(lower_request, asks))
    return Together(requests=asks, programs=programs, costs=workers.costs)


def test_the_edge_program_is_made_once_for_all_socs(together: Together) -> None:
    stages = [cost.stage for cost in together.costs]
    assert stages == ["quantize", "edge", *["lower"] * len(together.programs)]
    (seconds,) = {call.seconds for program in together.programs for call in program.made if call.stage == "edge"}
    assert seconds > 0
    assert len({program.methods[0].reference for program in together.programs}) == 1
    assert len({program.program for program in together.programs}) == len(together.programs)


def test_every_soc_gets_what_the_official_path_gives_it_alone(
    together: Together, resources: Resources, start_runner: StartRunner, images: list[tuple[bytes]], tmp_path: Path
) -> None:
    for ask, ours in zip(together.requests, together.programs, strict=True):
        asked = ours.methods[0].exported, ask.scheme, ask.soc, resources.store
        theirs = resources.workers.call("lower", official_path.build, *asked).value
        assert tuple(replace(row, subgraph=None) for row in ours.methods[0].operators) == theirs.operators
        assert tuple(replace(row, refusals=()) for row in ours.methods[0].delegation) == theirs.delegation
        assert ours.methods[0].delegated_subgraphs == theirs.delegated_subgraphs
        assert ours.program.size == theirs.program.size
        outputs = []
        for name, program in (("ours", ours.program), ("theirs", theirs.program)):
            done = start_runner(tmp_path / ask.soc.name / name, resources.store.read(program), images)
            assert done.exit_code == 0, done.stderr
            outputs.append(done.outputs)
        assert len(set(outputs[0].values())) == len(images)
        assert outputs[0] == outputs[1]
