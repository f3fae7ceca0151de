"""The programs of a cell in ONNX Runtime, on a device whose Python has its packages alone, against ExecuTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors

from qnnsweep.conf.devices import DeviceConfig, RunnerKind, SshConfig, TransportKind
from qnnsweep.conf.load import load
from qnnsweep.conf.models import InputConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.errors import RuntimesDiffer
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.records import Capture, LoweredProgram
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump, tensor
from tests.devices.bare_python import bare_python
from tests.devices.loopback import Sshd, running
from tests.toolchain.small_models import quantized_model
from tests.toolchain.test_state import MICRO, lowered_of, request_of

if TYPE_CHECKING:
    from qnnsweep.conf.schema import Request
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare_python(tmp_path_factory.mktemp("bare") / "python")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, python: str) -> Iterator[DeviceConfig]:
    """A board behind a real sshd."""
    folder = tmp_path_factory.mktemp("board")
    sshd = Sshd(folder=folder / "sshd")
    with running(sshd):
        yield DeviceConfig(
            name="board",
            transport=TransportKind.ssh,
            address=f"root@127.0.0.1:{sshd.port}",
            ssh=SshConfig(known_hosts=str(sshd.known_hosts), key_file=str(sshd.key), agent=False),
            work_folder=str(folder / "work"),
            lock_folder=str(folder),
            python=python,
            runner=RunnerKind.onnxruntime,
        )


def here(python: str | None) -> DeviceConfig:
    return DeviceConfig(name="here", python=python, runner=RunnerKind.onnxruntime)


def captured(ask: Request, lowered: LoweredProgram, device: DeviceConfig, resources: Resources) -> Capture:
    programs = bundle(lowered, ask.measure, True, store=resources.store)
    return measure(programs, (device,), None, store=resources.store, farm=resources.farm)


def contents(capture: Capture, resources: Resources) -> dict[str, Any]:
    """Return all tensors of a capture, those inside the delegate too, by names that say what they are."""
    store, found = resources.store, dict[str, Any]()
    for method in capture.methods:
        outputs = {f"outputs/{key}": value for key, value in load_tensors(store.read(method.outputs)).items()}
        found |= {f"{method.results[0].launch.method}/{key}": value for key, value in outputs.items()}
        for number, files in enumerate(method.debug):
            buffer = np.frombuffer(store.read(files.buffer), np.uint8)
            runs: dict[int, int] = {}
            for logged in read_etdump(store.read(files.etdump)).tensors:
                run = runs.setdefault(logged.run, len(runs))
                key = f"{method.results[0].launch.method}/{number}/{run}/{logged.instruction_id}/{logged.name}"
                key += f"/{logged.delegate_identifier}/{logged.is_output}/{logged.delegate_argument}"
                while key in found:
                    key += "+"
                found[key] = tensor(logged, buffer)
    return found


def unlike(first: dict[str, Any], second: dict[str, Any]) -> dict[str, float]:
    """Return the tensors that are not equal byte for byte, with their largest difference."""
    assert first.keys() == second.keys()
    assert [value.dtype for value in first.values()] == [second[name].dtype for name in first]
    return {
        name: float(np.abs(value - second[name]).max())
        for name, value in first.items()
        if value.tobytes() != second[name].tobytes()
    }


def test_every_tensor_of_both_programs_is_that_of_executorchs_runtime(
    request_8a8w: Request, lowered: LoweredProgram, capture: Capture, python: str, resources: Resources
) -> None:
    second = captured(request_8a8w, lowered, here(python), resources)
    expected = contents(capture, resources)
    assert len(expected) > 30
    assert unlike(expected, contents(second, resources)) == {}
    assert all(result.latencies_ms for result in second.results)


def test_a_model_with_states_runs_its_loop_on_a_board(board: DeviceConfig, resources: Resources) -> None:
    ask = request_of(MICRO, "16a8w")
    lowered = lowered_of(ask, resources)
    assert len(lowered.methods) == 2
    first = captured(ask, lowered, ask.device, resources)
    second = captured(ask, lowered, board, resources)
    assert unlike(contents(first, resources), contents(second, resources)) == {}


@pytest.fixture(scope="module")
def divided(resources: Resources) -> tuple[Request, LoweredProgram]:
    return divided_program(resources)


def divided_program(resources: Resources) -> tuple[Request, LoweredProgram]:
    """Return a program in two subgraphs, with an operator on the CPU between them."""
    ask = load(["model=digits_cnn", "scheme=16a8w", "soc=SM8650", "measure.operator_samples=2"]).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 8, 8])]
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantized_model(ask, resources, "divided_model", 4, name="divided", inputs=inputs)
    return ask, lower(quantized, ask.soc, lowering_options(ask), **tools)


def test_an_operator_on_the_cpu_is_computed_by_pytorch_on_a_device_that_has_it(
    divided: tuple[Request, LoweredProgram], resources: Resources
) -> None:
    ask, lowered = divided
    first = contents(captured(ask, lowered, ask.device, resources), resources)
    second = contents(captured(ask, lowered, here(None), resources), resources)
    # PyTorch rounds erf otherwise than ExecuTorch's kernel, on each machine in other elements. The delegate that reads
    # it rounds to its grid: rarely does a code change there, and then a sum of products by two steps at most.
    differences = unlike(first, second)
    of_cpu = {
        f"None/0/{run}/{instruction}/None/None/False/{is_argument}"
        for run in (0, 1)
        for instruction, is_argument in ((1, False), (2, True))
    }
    assert {name for name in differences if not name.startswith("None/outputs/")} <= of_cpu
    assert max(differences.get(name, 0.0) for name in of_cpu) < 2e-7
    (method,) = lowered.methods
    (output,) = method.output_operators
    assert output is not None
    grid = method.operators[output].quantization
    assert grid is not None
    assert all(size < 2.5 * grid.scale[0] for name, size in differences.items() if name not in of_cpu)


def test_an_operator_on_the_cpu_is_computed_on_the_host_for_a_board_without_pytorch(
    divided: tuple[Request, LoweredProgram], board: DeviceConfig, resources: Resources
) -> None:
    ask, lowered = divided
    with_pytorch = contents(captured(ask, lowered, here(None), resources), resources)
    assert unlike(with_pytorch, contents(captured(ask, lowered, board, resources), resources)) == {}


@pytest.fixture(scope="module")
def controlled(resources: Resources) -> tuple[Request, LoweredProgram]:
    """A program with two outputs of one shape, in a request for the second runtime."""
    overrides = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "measure.second_runtime=true"]
    ask = load([*overrides, "measure.operator_samples=2"]).cells[0].request
    inputs = [InputConfig(name="x", shape=[1, 8])]
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantized_model(ask, resources, "twin_outputs_model", 4, name="twins", inputs=inputs)
    return ask, lower(quantized, ask.soc, lowering_options(ask), **tools)


def measured_by(
    controlled: tuple[Request, LoweredProgram], resources: Resources, right: str = "", wrong: str = ""
) -> Capture:
    """Measure with ExecuTorch's runtime and with ONNX Runtime. `wrong` replaces `right` in the runner of the former."""
    ask, lowered = controlled
    programs = bundle(lowered, ask.measure, store=resources.store)
    text = resources.store.read(programs.runner).decode()
    assert right in text
    planted = resources.store.put_bytes(text.replace(right, wrong).encode() if right else text.encode())
    blobs = tuple(planted if blob == programs.runner else blob for blob in programs.blobs)
    programs = replace(programs, runner=planted, blobs=blobs)
    return measure(programs, (ask.device,), None, store=resources.store, farm=resources.farm)


def test_the_second_runtime_returns_every_tensor_of_the_first_one(
    controlled: tuple[Request, LoweredProgram], resources: Resources
) -> None:
    capture = measured_by(controlled, resources)
    (files,) = capture.methods[0].debug
    logged = read_etdump(resources.store.read(files.etdump)).tensors
    inside = sum(one.delegate_identifier is not None for one in logged)
    assert inside > 0
    assert capture.equal_tensors == inside + 4 * 2


def test_what_depends_on_an_operator_on_the_cpu_is_blamed_on_no_runtime(
    divided: tuple[Request, LoweredProgram], resources: Resources
) -> None:
    ask, lowered = divided  # PyTorch rounds its erf otherwise than ExecuTorch's kernel
    asked = replace(ask, measure=replace(ask.measure, second_runtime=True))
    capture = measured_by((asked, lowered), resources)
    (files,) = capture.methods[0].debug
    logged = read_etdump(resources.store.read(files.etdump)).tensors
    before = sum(one.delegate_identifier is not None and one.instruction_id == 0 for one in logged)
    assert before > 0
    assert capture.equal_tensors == before


def test_outputs_that_a_runtime_exchanges_are_its_fault_and_that_of_no_operator(
    controlled: tuple[Request, LoweredProgram], resources: Resources
) -> None:
    exchanged = "for tensor in reversed(answer)]"
    with pytest.raises(RuntimesDiffer) as error:
        measured_by(controlled, resources, "for tensor in answer]", exchanged)
    assert str(error.value) == (
        "ExecuTorch's runtime and ONNX Runtime return other tensors from the same compiled graph, so no operator is at "
        "fault: output 0 differs in 4 of 4 samples, where it is 1 of ONNX Runtime; output 1 differs in 4 of 4 samples, "
        "where it is 0 of ONNX Runtime"
    )


def test_an_input_that_a_runtime_scales_wrongly_is_seen_at_the_first_tensor(
    controlled: tuple[Request, LoweredProgram], resources: Resources
) -> None:
    with pytest.raises(RuntimesDiffer, match=r"from the first one on: look at the inputs"):
        measured_by(controlled, resources, "torch.from_numpy(array)", "torch.from_numpy(array) * 1.05")
