"""The native runner gets all its files, and gets them once."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.devices import DeviceConfig, RunnerKind, TransportKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.devices.native_runner import native_files
from qnnsweep.tasks.errors import EnvironmentUnusable
from tests.devices.bench import WRITES, Bench

SM8650 = SocConfig(name="SM8650", arch=75, vtcm_mib=8)
NATIVE = """\
#!/bin/sh
[ "$LD_LIBRARY_PATH" = "${0%/*}" ] && [ "$ADSP_LIBRARY_PATH" = "${0%/*}" ] || exit 9
for name in libQnnHtp.so libQnnSystem.so libQnnHtpV75Stub.so libQnnHtpV75Skel.so libqnn_executorch_backend.so; do
  [ "$(cat "${0%/*}/$name")" = "$name" ] || exit 10
done
printf '%s\\n' "$@" >arguments
printf '\\0\\0\\0\\0\\0\\0\\0\\0' >outputs/output_0_0.raw
: >etdump.etdp
echo "I 00:00:00 executorch:qnn_executor_runner.cpp:1] 3 inference took 6.0 ms, avg 2.0 ms"
"""


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an SDK folder and a build folder, whose runner is a script that checks the files beside it."""
    files = [
        "sdk/lib/aarch64-android/libQnnHtp.so",
        "sdk/lib/aarch64-android/libQnnSystem.so",
        "sdk/lib/aarch64-android/libQnnHtpV75Stub.so",
        "sdk/lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so",
        "build/backends/qualcomm/libqnn_executorch_backend.so",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(Path(name).name)
    runner = tmp_path / "build" / "examples" / "qualcomm" / "executor_runner" / "qnn_executor_runner"
    runner.parent.mkdir(parents=True)
    runner.write_text(NATIVE)
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "sdk"))
    return tmp_path


def native(config: DeviceConfig, sdk: Path) -> DeviceConfig:
    return replace(config, runner=RunnerKind.native, python=None, soc="SM8650", native_folder=str(sdk / "build"))


@pytest.mark.parametrize("config_name", ["over_adb", "over_ssh"])
def test_the_native_runner_has_all_its_files_beside_it_and_is_sent_once(
    bench: Bench, sdk: Path, config_name: str
) -> None:
    config = native(getattr(bench, config_name), sdk)
    bundle = bench.bundle(WRITES)
    first = bench.measure(bundle, config, soc=SM8650)
    assert first.results[0].latencies_ms == (2.0,)
    assert first.results[0].command.argv[1:] == (
        f"--model_path=../../../blobs/{bundle.launches[0].program.sha256}",
        f"--input_list_path=../../../blobs/{bundle.launches[0].input_list.sha256}",
        "--output_folder_path=outputs",
        "--etdump_path=etdump.etdp",
        "--iteration=1",
        "--warm_up=0",
        "--htp_performance_mode=0",
    )
    assert bench.measure(bundle, config, soc=SM8650).bytes_sent == 0
    other = bench.bundle(WRITES, ballast=1000)
    assert bench.measure(other, config, soc=SM8650).bytes_sent == 1000
    assert stat.S_IMODE(next(iter(sdk.glob("build/**/qnn_executor_runner"))).stat().st_mode) & 0o111 == 0


def test_all_missing_files_of_the_native_runner_are_named_at_once(sdk: Path) -> None:
    device = DeviceConfig(name="phone", transport=TransportKind.adb, native_folder=str(sdk / "nothing"))
    with pytest.raises(EnvironmentUnusable) as lacking:
        native_files(device, 79, {"QNN_SDK_ROOT": str(sdk / "sdk")})
    assert str(lacking.value) == (
        f"device phone: its native runner lacks qnn_executor_runner below device.native_folder={sdk}/nothing; "
        f"libqnn_executorch_backend.so below device.native_folder={sdk}/nothing; "
        f"{sdk}/sdk/lib/aarch64-android/libQnnHtpV79Stub.so; {sdk}/sdk/lib/hexagon-v79/unsigned/libQnnHtpV79Skel.so"
    )
    with pytest.raises(EnvironmentUnusable, match=r"lacks QNN_SDK_ROOT, an unpacked Qualcomm AI Engine Direct SDK"):
        native_files(replace(device, native_folder=str(sdk / "build")), 75, {})
