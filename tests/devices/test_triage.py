"""Messages of the device's libraries are recognized, and the device is blamed for them."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.devices import triage
from qnnsweep.tasks.errors import RunnerFailed
from tests.devices.bench import WRITES, Bench

EXITS = "import sys; print({text!r}); sys.exit(1)"
MESSAGES = {
    "stub_mismatch": "<E> Stub lib id mismatch: expected (v2.28.2.24), detected (v2.25.17.24)",
    "skel_not_found": "<E> DspTransport.openSession qnn_open failed, 0x80000406",
    "transport": "<E> Failed to create transport for device, error: 4000",
    "no_pd": "<E> Failed to find available PD for contextId 1 on deviceId 0 coreId 0with context size estimate 9",
    "pd_memory": "<E> fastrpc memory map for fd: 33 with length: 817889280 failed with error: 0x1",
    "ssr": "<E> SSR detected on device config {0,0,0}. Thread will handle cleanup for all impacted sessions",
    "dma": "E rpcmem: rpcmem_alloc failed for size 4096",
    "unsupported_arch": "<E> Unsupported HTP Arch 0 68",
    "library_missing": "error while loading shared libraries: libQnnHtp.so: cannot open shared object file",
    "package_missing": "ModuleNotFoundError: No module named 'onnxruntime_qnn'",
    "no_execution_provider": "E executorch:qnnsweep_runner.py] onnxruntime-qnn finds no HTP on this machine",
    "aihub_release": "E executorch:qnnsweep_runner.py] AI Hub: the job failed with QNN_VERSION_MISMATCH: URL: 2.45",
    "aihub_request": "E executorch:qnnsweep_runner.py] AI Hub: the job failed with INVALID_ARGUMENT: URL: --qnn",
    "aihub_memory": "E executorch:qnnsweep_runner.py] AI Hub: the job failed with RUNTIME_DEVICE_OOM: URL: killed",
    "aihub_failed": "E executorch:qnnsweep_runner.py] AI Hub: the job failed with CLOUD_THROTTLED: URL: slow down",
    "aihub_account": "E executorch:qnnsweep_runner.py] AI Hub: the token is refused: UserError: bad token",
    "aihub_client": "E executorch:qnnsweep_runner.py] AI Hub: the client cannot be imported: ModuleNotFoundError: x",
    "aihub_unusable": "E executorch:qnnsweep_runner.py] AI Hub: the service cannot be used: InternalError: Timeout",
}


def test_every_signature_has_a_message() -> None:
    assert {name: getattr(triage.of_runner(text), "name", None) for name, text in MESSAGES.items()} == {
        name: name for name in MESSAGES
    }
    assert [signature.name for signature in triage.RUNNER] == list(MESSAGES)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_recognized_after_megabytes_of_other_output(name: str) -> None:
    signature = triage.of_runner("loaded\n" * 1_000_000 + MESSAGES[name], "E executorch:main.cpp:1] no\n")
    assert signature is not None
    assert signature.name == name


LONG = {
    text: text * (1_000_000 // len(text))
    for text in (
        "libQnn",
        "libQnnHtp.so ",
        "dmabuf",
        "rpcmem ",
        "fastrpc memory map ",
        "createUnsignedPD ",
        "device ",
        "\n",
    )
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("repeated", LONG)
def test_any_output_is_searched_without_a_hang(repeated: str) -> None:
    for text in (LONG[repeated], "libQnn" + LONG[repeated]):
        assert (triage.of_runner(text, text), triage.of_channel(text)) == (None, None)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_runner_that_fails_because_of_the_device_is_retried_on_a_sibling(bench: Bench, name: str) -> None:
    code = f"import os\nif '/here/' not in os.getcwd():\n    {EXITS.format(text=MESSAGES[name])}\n{WRITES}"
    assert bench.measure(bench.bundle(code), bench.over_adb, bench.here).device == "here"
    assert str(bench.farm.quarantined["phone"]).startswith(f"{name}: ")


def test_every_operator_that_the_runtime_lacks_is_named_once() -> None:
    lines = [
        "[method.cpp:822] Missing operator: [0] aten::rand_like.out",
        "[method.cpp:822] Missing operator: [3] a::b.out",
    ]
    assert triage.missing_operators("loaded", "\n".join([*lines, *lines])) == ["aten::rand_like.out", "a::b.out"]
    assert triage.missing_operators("loaded", "RuntimeError: Failed to execute method forward, error: 0x12") == []


def test_a_program_whose_runtime_lacks_an_operator_fails_with_the_name_and_the_remedy(bench: Bench) -> None:
    code = EXITS.format(text="[method.cpp:822] Missing operator: [0] aten::rand_like.out")
    with pytest.raises(RunnerFailed) as failed:
        bench.measure(bench.bundle(code), bench.here)
    assert str(failed.value).splitlines()[0] == (
        "ExecuTorch's runtime on here lacks aten::rand_like.out, which runs on the CPU: replace it in the model's "
        "forward, or use a native runner that has it; the shipping program ended with exit code 1 on here"
    )
