"""The fixtures that tests share: a Prefect server, a store, a fork server and one lowering of the smallest model."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.server.settings import configure_prefect
from qnnsweep.tasks.records import Capture, LoweredProgram
from tests import durations, shared_server
from tests.devices.loopback import NeedsRoot
from tests.flows.cluster import client_environment
from tests.program import Program, new_program, program_at
from tests.warm import WarmPython

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

configure_prefect()

# A checkout can be read-only.
set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"qnnsweep-hypothesis-{os.getuid()}"))
# A test may be slow on a machine with other load. By day the examples are the same each time, so that no test fails by
# chance; CI_NIGHT=1 draws others in every run, and more of them.
settings.register_profile("day", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("night", deadline=None, max_examples=200)
settings.load_profile("night" if os.environ.get("CI_NIGHT") else "day")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = durations.longest_first(items, durations.recorded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    try:
        return (yield)
    except NeedsRoot as needed:
        pytest.skip(str(needed))


pytest_runtest_call = pytest_runtest_setup  # a fixture or the test itself may need root


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute in one thread. The threads of several test processes would wait for each other, and busily."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def request_8a8w() -> Request:
    """The smallest quantized cell: digits_cnn, 8a8w, SM8650, two operator samples of eight."""
    overrides = ["model=digits_cnn", "scheme=8a8w", "soc=SM8650", "model.evaluation.count=8"]
    return load([*overrides, "model.calibration.count=32", "measure.operator_samples=2"]).cells[0].request


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what all processes of the tests share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def resources(shared: Path) -> Resources:
    """Workers of the real toolchain, the local device, and the store that all processes of the tests share."""
    from qnnsweep.flows.cells.resources import prepare

    return prepare(load([f"artifacts={shared / 'artifacts'}", "limits.parallel=2"]))


@pytest.fixture(scope="session")
def lowered(request_8a8w: Request, resources: Resources) -> LoweredProgram:
    """`request_8a8w`, exported, quantized and lowered by the real toolchain, in one of the processes of the tests."""
    from qnnsweep.flows.cells.graph import lowering_options
    from qnnsweep.tasks.export import export_task
    from qnnsweep.tasks.lower import lower_task
    from qnnsweep.tasks.quantize import quantize_task
    from tests.computed import computed

    ask = request_8a8w
    tools: Any = {"store": resources.store, "workers": resources.workers}
    exported = computed(export_task, ask.model, "", **tools)
    quantized = computed(quantize_task, exported, ask.scheme, ask.backend.kind, **tools)
    return computed(lower_task, quantized, ask.soc, lowering_options(ask), **tools)


@pytest.fixture(scope="session")
def capture(request_8a8w: Request, resources: Resources, lowered: LoweredProgram) -> Capture:
    """The capture of `lowered` on the local device."""
    from qnnsweep.tasks.bundle import bundle_task
    from qnnsweep.tasks.measure import measure_task
    from tests.computed import computed

    ask, store = request_8a8w, resources.store
    packed = computed(bundle_task, lowered, ask.measure, store=store)
    return computed(measure_task, packed, (ask.device,), ask.soc, store=store, farm=resources.farm)


@pytest.fixture(scope="session")
def user_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a user without a Prefect server, with the database that the first run makes."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def program(user_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of this user, in a folder of the file's tests: each run starts a temporary server."""
    return program_at(user_home, tmp_path_factory.mktemp("working"))


@pytest.fixture(scope="session")
def prefect_api(shared: Path) -> Iterator[httpx.Client]:
    """A client of the Prefect server of all tests."""
    with shared_server.shared_server(shared / "prefect") as client:
        yield client


@pytest.fixture(scope="module")
def served_program(warm_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of a user with a Prefect server, in a folder of the file's tests."""
    return replace(warm_program, folder=tmp_path_factory.mktemp("working"))


@pytest.fixture(scope="session")
def warm_program(
    prefect_api: httpx.Client, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """The program of a user with a Prefect server: no run starts a temporary server, which takes ten seconds."""
    program = new_program(tmp_path_factory)
    server = {"PREFECT_HOME": str(shared_server.home(shared / "prefect"))} | client_environment(prefect_api)
    environment = program.environment | server
    with closing(WarmPython(environment)) as warm:
        yield replace(program, environment=environment, warm=warm)
