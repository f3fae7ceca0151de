"""Programs on a device that Qualcomm AI Hub hosts: its real client, against a local server that executes the binaries.

The service itself is not here. What the server does is what the client's protocol says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.devices import AiHubConfig, DeviceConfig, RunnerKind
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.devices.triage import of_runner
from qnnsweep.tasks.errors import DeviceError, RunnerFailed
from tests.devices.bare_python import bare_python
from tests.hosted.local_hub import MEAN_US, PYTHON, LocalHub, local_hub, messages
from tests.toolchain.test_onnxruntime import captured, contents, divided_program, here, unlike
from tests.toolchain.test_state import MICRO, lowered_of, request_of

if TYPE_CHECKING:
    from pathlib import Path

    from qnnsweep.conf.schema import Request
    from qnnsweep.flows.cells.resources import Resources
    from qnnsweep.tasks.records import Capture, LoweredProgram

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    with local_hub(tmp_path / "hub") as hub:
        yield hub


def phone(hub: LocalHub, **others: object) -> DeviceConfig:
    settings: dict[str, object] = {"deadline_s": 120.0} | others
    return DeviceConfig(
        name="phone",
        runner=RunnerKind.aihub,
        soc="SM8650",
        python=PYTHON,
        aihub=AiHubConfig(device="Samsung Galaxy S24 (Family)"),
        work_folder=str(hub.folder / "work"),
        environment={"QAIHUB_CLIENT_INI": str(hub.configure())},
        **settings,  # pyright: ignore[reportArgumentType]
    )


def measured(ask: Request, lowered: LoweredProgram, device: DeviceConfig, resources: Resources) -> Capture:
    from qnnsweep.tasks.bundle import bundle
    from qnnsweep.tasks.measure import measure

    programs = bundle(lowered, ask.measure, True, store=resources.store)
    farm = Farm(host_environment={}, folder=resources.store.root / "devices")
    return measure(programs, (device,), ask.soc, store=resources.store, farm=farm)


def test_every_tensor_of_both_programs_is_that_of_executorchs_runtime(
    request_8a8w: Request, lowered: LoweredProgram, capture: Capture, hub: LocalHub, resources: Resources
) -> None:
    second = measured(request_8a8w, lowered, phone(hub), resources)
    expected = contents(capture, resources)
    assert len(expected) > 30
    assert unlike(expected, contents(second, resources)) == {}
    shipping, debug = second.results
    samples = shipping.launch.samples
    assert shipping.latencies_ms == (MEAN_US / 1000,) * samples
    assert debug.latencies_ms == ()
    assert (shipping.command.jobs, debug.command.jobs) == ((f"{hub.url}/jobs/j1/",), (f"{hub.url}/jobs/j2/",))
    assert second.device_id is None
    assert hub.asked == {"model": 2, "dataset": 2, "job": 2, "outputs": 2}


PROGRAMS = {
    "RUNTIME_CRASH", "RUNTIME_TIMEOUT", "MODEL_UNKNOWN", "MODEL_INVALID", "QNN_TOOL_ERROR", "UNSUPPORTED",
}  # fmt: skip
"""The failures of a program. All others are failures of the service, of the account or of the device."""
REMEDIES = {
    "QNN_VERSION_MISMATCH": "aihub_release", "DSP_VERSION_MISMATCH": "aihub_release",
    "INVALID_INPUTS": "aihub_request", "INVALID_ARGUMENT": "aihub_request", "RUNTIME_DEVICE_OOM": "aihub_memory",
}  # fmt: skip


def failure_types() -> list[str]:
    return [name.removeprefix("JOB_FAILURE_TYPE_") for name in messages().JobFailureType.DESCRIPTOR.values_by_name]


def test_all_26_types_of_failures_have_a_class() -> None:
    types = failure_types()
    assert len(types) == 26
    for name in types:
        line = f"E executorch:qnnsweep_runner.py] AI Hub: the job failed with {name}: https://hub/jobs/j1/: why"
        found = of_runner("", line)
        assert (found and found.name) == (None if name in PROGRAMS else REMEDIES.get(name, "aihub_failed")), name
    found = of_runner("", "E executorch:qnnsweep_runner.py] AI Hub: the job failed with CLOUD_OF_TOMORROW: URL: why")
    assert found is not None
    assert found.name == "aihub_failed", "a type that this version does not know is none of the program"


@pytest.mark.parametrize("reason", ["std::bad_alloc", "SSR detected", "x\nE executorch:qnnsweep_runner.py] AI Hub: no"])
def test_the_type_of_a_failure_alone_decides_whose_fault_it_is(
    reason: str, request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    hub.failures, hub.reason = ["RUNTIME_CRASH"], reason
    with pytest.raises(RunnerFailed, match="the job failed with RUNTIME_CRASH"):
        measured(request_8a8w, lowered, phone(hub), resources)


@pytest.mark.parametrize(
    ("plan", "jobs"),
    [
        ({"failures": ["RUNTIME_INTERNAL_SERVICE_BUSY"]}, 3),
        ({"failures": ["CLOUD_RESOURCE_MISSING"]}, 3),
        ({"lost": 1}, 3),
        ({"refused": 2}, 2),
    ],
)
def test_a_passing_fault_of_the_service_is_survived(
    plan: dict[str, object], jobs: int, request_8a8w: Request, lowered: LoweredProgram, capture: Capture, hub: LocalHub,
    resources: Resources,
) -> None:  # fmt: skip
    for name, value in plan.items():
        setattr(hub, name, value)
    second = measured(request_8a8w, lowered, phone(hub), resources)
    assert unlike(contents(capture, resources), contents(second, resources)) == {}
    assert hub.asked["job"] == jobs
    assert sum(len(result.command.jobs) for result in second.results) == jobs


def test_what_the_service_has_is_not_sent_again_unless_it_is_expired_or_deleted(
    request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    def sent() -> tuple[int, int]:
        before = hub.asked["model"], hub.asked["dataset"]
        measured(request_8a8w, lowered, phone(hub), resources)
        return hub.asked["model"] - before[0], hub.asked["dataset"] - before[1]

    assert sent() == (2, 2)
    assert sent() == (0, 0)
    hub.expires = dict.fromkeys(hub.expires, 1)
    assert sent() == (0, 2)
    hub.models.clear()
    assert sent() == (2, 0)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"failures": ["QNN_VERSION_MISMATCH"]}, "aihub_release: AI Hub runs another QNN"),
        ({"failures": ["UNKNOWN", 31337]}, "aihub_failed: Qualcomm AI Hub failed, not the program: run again later"),
        ({"lost": 2}, "it has lost"),
        ({"endless": True}, r"no end of http://127\.0\.0\.1:\d+/jobs/j1/ after 18 s; raise device\.deadline_s"),
        ({"damage": "too few"}, "it has lost"),
        ({"refused": 10**6}, "ran past its deadline of 12 s"),
    ],
)
def test_what_the_service_does_wrong_is_a_fault_of_the_device(
    plan: dict[str, object], said: str, request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub,
    resources: Resources,
) -> None:  # fmt: skip
    for name, value in plan.items():
        setattr(hub, name, value)
    device = phone(hub, deadline_s=20.0 if hub.endless else 12.0 if hub.refused else 120.0)
    with pytest.raises(DeviceError, match=said):
        measured(request_8a8w, lowered, device, resources)
    assert hub.asked["refused"] > 0 or not hub.refused


@pytest.mark.parametrize(("damage", "said"), [("renamed", "no output"), ("other type", r"\S+ is \[\('float64'")])
def test_results_of_another_form_end_the_cell_and_the_device_stays_in_use(
    damage: str, said: str, request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    hub.damage = damage
    with pytest.raises(RunnerFailed, match=f"the results are not those of the program: {said}"):
        measured(request_8a8w, lowered, phone(hub), resources)


def test_a_program_that_crashes_the_hosted_device_has_failed_and_the_message_has_the_url_of_the_job(
    request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    hub.failures, hub.reason = ["RUNTIME_CRASH"], "it\nwas\nplanned" + 3000 * "!"
    with pytest.raises(RunnerFailed) as raised:
        measured(request_8a8w, lowered, phone(hub), resources)
    url = f"{hub.url}/jobs/j1/"
    assert f"AI Hub: the job failed with RUNTIME_CRASH: {url}: it was planned!" in str(raised.value)
    assert raised.value.command.jobs == (url,)


def test_the_token_is_in_no_message_and_in_no_file_but_the_clients(
    request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    device = phone(hub)
    hub.configure("another-secret-token")
    with pytest.raises(DeviceError, match="the token is refused") as raised:
        measured(request_8a8w, lowered, device, resources)
    assert "secret-token" not in str(raised.value)
    for torn in ("api_token = a-secret-token\n", "[api]\napi_token a-secret-token\n", "[api]\na\n secret-token"):
        (hub.folder / "client.ini").write_text(torn)
        with pytest.raises(DeviceError, match="the client has no configuration") as raised:
            measured(request_8a8w, lowered, device, resources)
        assert "secret-token" not in str(raised.value)
    text = f"[api]\napi_token = a\n secret-token\napi_url = {hub.url}\nweb_url = {hub.url}\n"
    (hub.folder / "client.ini").write_text(text)  # a token of two lines, which no header can have
    with pytest.raises(DeviceError, match="the service cannot be used") as raised:
        measured(request_8a8w, lowered, device, resources)
    assert "secret-token" not in str(raised.value)
    hub.configure()
    measured(request_8a8w, lowered, device, resources)
    folders = (hub.folder, resources.store.root)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.suffix != ".ini"]
    assert files
    assert [file for file in files if b"secret-token" in file.read_bytes()] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "the client has no configuration"),
        ("[api]\napi_url = http://127.0.0.1:9\n", "the client has no configuration"),
    ],
)
def test_a_client_without_an_account_says_what_to_do(
    content: str | None, said: str, request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    device = phone(hub)
    file = hub.folder / "client.ini"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(DeviceError, match=said):
        measured(request_8a8w, lowered, device, resources)


@pytest.mark.night
def test_an_operator_on_the_cpu_between_two_delegates_is_computed_by_this_machine(
    hub: LocalHub, resources: Resources
) -> None:
    ask, lowered = divided_program(resources)
    board = here(bare_python(hub.folder / "python"))  # with ONNX Runtime: this machine computes the operator for it too
    first = contents(captured(ask, lowered, board, resources), resources)
    second = measured(ask, lowered, phone(hub), resources)
    assert unlike(first, contents(second, resources)) == {}
    (shipping, debug), samples = second.results, len(lowered.methods[0].exported.sample_names)
    assert (shipping.command.host_rounds, debug.command.host_rounds) == (1, 1)
    # One job for the first delegate in all samples; one per sample for the second one, whose inputs the host computes.
    assert len(shipping.command.jobs) == 1 + samples
    assert hub.asked["job"] == 1 + samples + 1 + debug.launch.samples


@pytest.mark.night
def test_each_step_of_a_model_with_states_is_a_job(hub: LocalHub, resources: Resources) -> None:
    ask = request_of(MICRO, "16a8w")
    lowered = lowered_of(ask, resources)
    first = captured(ask, lowered, ask.device, resources)
    second = measured(ask, lowered, phone(hub, deadline_s=600.0), resources)
    assert unlike(contents(first, resources), contents(second, resources)) == {}
    shipping = second.results[0]
    assert len(shipping.command.jobs) == shipping.launch.samples


@pytest.mark.night
def test_all_26_failures_end_as_their_class_says(
    request_8a8w: Request, lowered: LoweredProgram, hub: LocalHub, resources: Resources
) -> None:
    for name in failure_types():
        hub.failures = [name, name]
        error: type[Exception] = RunnerFailed if name in PROGRAMS else DeviceError
        with pytest.raises(error, match=f"the job failed with {name}: http.*: it was planned"):
            measured(request_8a8w, lowered, phone(hub), resources)
