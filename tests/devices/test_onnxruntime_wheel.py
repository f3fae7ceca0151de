"""The wheels of onnxruntime-qnn for boards and laptops have the libraries that `qnnsweep devices` looks for."""

from __future__ import annotations

import zipfile
from importlib.metadata import files, version
from pathlib import Path

import pytest

from qnnsweep.tasks.devices.onnxruntime_wheel import missing_libraries
from tests.toolchain.prepared.conftest import WHEELS

ARCHS = (68, 69, 73, 75, 79, 81)
# By the platform in the name of the wheel: the names of the system and the machine, and the architectures without
# libraries. The wheel for Windows serves the laptops only.
PLATFORMS = {"manylinux_2_34_aarch64": ("Linux", "aarch64", ()), "win_arm64": ("Windows", "ARM64", (69, 75, 79))}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_wheel_has_the_libraries_of_each_architecture_that_it_serves(tmp_path: Path, platform: str) -> None:
    system, machine, unserved = PLATFORMS[platform]
    (wheel,) = WHEELS.glob(f"onnxruntime_qnn-{version('onnxruntime-qnn')}-*-{platform}.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    unpacked = [path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    missing = {arch: missing_libraries(system, machine, unpacked, arch) for arch in ARCHS}
    stub = "QnnHtpV{}Stub.dll" if system == "Windows" else "libQnnHtpV{}Stub.so"
    assert {arch: names for arch, names in missing.items() if names} == {
        arch: [stub.format(arch), f"libQnnHtpV{arch}Skel.so"] for arch in unserved
    }
    (provider,) = (path for path in tmp_path.rglob("*onnxruntime_providers_qnn.*"))
    magic = {"Linux": b"\x7fELF", "Windows": b"MZ\x90\0"}[system]
    assert provider.read_bytes()[:4] == magic


def test_this_machine_has_the_libraries_of_the_simulator() -> None:
    names = [path.name for path in files("onnxruntime-qnn") or ()]
    assert missing_libraries("Linux", "x86_64", names, 75) == []
    assert missing_libraries("Linux", "x86_64", [], None) == [
        "libonnxruntime_providers_qnn.so", "libQnnHtp.so", "libQnnSystem.so",
    ]  # fmt: skip
