"""Messages of the device's libraries are recognized, and the device is blamed for them."""

from __future__ import annotations

import pytest

from tasks.devices import triage

from .bench import WRITES, Bench

EXITS = "import sys; print({text!r}); sys.exit(1)"
SPOKEN = {
    "stub_mismatch": "<E> Stub lib id mismatch: expected (v2.28.2.24), detected (v2.25.17.24)",
    "skel_not_found": "<E> DspTransport.openSession qnn_open failed, 0x80000406",
    "transport": "<E> Failed to create transport for device, error: 4000",
    "no_pd": "<E> Failed to find available PD for contextId 1 on deviceId 0 coreId 0with context size estimate 9",
    "pd_memory": "<E> fastrpc memory map for fd: 33 with length: 817889280 failed with error: 0x1",
    "ssr": "<E> SSR detected on device config {0,0,0}. Thread will handle cleanup for all impacted sessions",
    "dma": "E rpcmem: rpcmem_alloc failed for size 4096",
    "unsupported_arch": "<E> Unsupported HTP Arch 0 68",
    "library_missing": "error while loading shared libraries: libQnnHtp.so: cannot open shared object file",
}


def test_every_signature_of_a_runner_has_been_spoken() -> None:
    assert {name: getattr(triage.of_runner(text), "name", None) for name, text in SPOKEN.items()} == {
        name: name for name in SPOKEN
    }
    assert [each.name for each in triage.RUNNER] == list(SPOKEN)


@pytest.mark.parametrize("name", SPOKEN)
def test_a_runner_that_ends_badly_and_blames_the_device_is_moved_to_a_sibling(bench: Bench, name: str) -> None:
    code = f"import os\nif '/here/' not in os.getcwd():\n    {EXITS.format(text=SPOKEN[name])}\n{WRITES}"
    assert bench.measure(bench.bundle(code), bench.over_adb, bench.here).execution.device == "here"
    assert str(bench.farm.quarantined["phone"]).startswith(f"{name}: ")
