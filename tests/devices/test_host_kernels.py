"""A runner that waits for the host: what it asks for is computed, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnsweep.conf.devices import DeviceConfig, RunnerKind
from qnnsweep.tasks.devices.farm import Farm
from qnnsweep.tasks.errors import DeviceError, RunnerFailed
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.records import Bundle, Capture, OnnxRuntime, Parts
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.ort import kernels
from qnnsweep.tasks.toolchain.ort.archive import onnx_runner
from tests.devices.bench import shipping_launch

KEY = "5" * 64
# As a device it waits until it is answered, and returns the answer. As a program of the host it is the real archive.
WAITS = """
import json, runpy, sys
from pathlib import Path
if sys.argv[1] == "--kernels":
    sys.argv[0] = {archive!r}
    runpy.run_path({archive!r}, run_name="__main__")
answer = Path("answers-0", "{key}_2")
if not answer.exists():
    Path("asked").mkdir(exist_ok=True)
    Path("asked", "{key}_0").write_bytes(bytes([0, 0, 128, 63, 0, 0, 0, 64]))
    Path("requests.json").write_text({text!r})
    sys.exit(75)
Path("outputs/output_0_0.raw").write_bytes(answer.read_bytes())
Path("etdump.etdp").write_bytes(b"etdump")
"""
NEGATIVE = {"method": "forward", "call": 0, "key": KEY, "reads": ["0"]}


def captured(tmp_path: Path, text: str, kernel: str = "aten::neg.out") -> Capture:
    store = Store(tmp_path / "store")
    (tmp_path / "archive").write_bytes(onnx_runner())
    code = WAITS.format(archive=str(tmp_path / "archive"), key=KEY, text=text)
    value = {"dtype": "float32", "shape": [2]}
    call = {"instruction": 0, "kernel": kernel, "arguments": [{"value": "0"}, {"value": "2"}, {"value": "2"}]}
    method: dict[str, Any] = {"name": "forward", "inputs": ["0"], "outputs": ["2"], "values": {"0": value, "2": value}}
    described = {"methods": [method | {"calls": [call]}]}
    runner, program, inputs = (store.put_bytes(data) for data in (code.encode(), b"program", b""))
    parts = Parts(program=program, description=store.put_bytes(json.dumps(described).encode()), files=())
    second = OnnxRuntime(runner=runner, parts=(parts,))
    bundle = Bundle(
        runner=runner, blobs=(runner, program, inputs), launches=(shipping_launch(program, inputs),), onnxruntime=second
    )
    device = DeviceConfig(name="board", runner=RunnerKind.onnxruntime, work_folder=str(tmp_path / "b" / "w"))
    return measure(bundle, (device,), None, store=store, farm=Farm(host_environment={}, folder=tmp_path / "farm"))


def test_the_host_computes_what_the_runner_waits_for(tmp_path: Path) -> None:
    capture = captured(tmp_path, json.dumps([NEGATIVE]))
    (output,) = capture.methods
    assert np.array([-1, -2], np.float32).tobytes() in Store(tmp_path / "store").read(output.outputs)
    assert [result.command.host_rounds for result in capture.results] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "{}",
        json.dumps([NEGATIVE | {"method": "backward"}]),
        json.dumps([NEGATIVE | {"call": 1}]),
        json.dumps([NEGATIVE | {"call": -1}]),
        json.dumps([NEGATIVE | {"key": "../../../etc/passwd"}]),
        json.dumps([NEGATIVE | {"reads": ["../0"]}]),
        json.dumps([NEGATIVE | {"reads": ["0", "0"]}]),
        "[" * 900,
        json.dumps([NEGATIVE]) + " " * 1024,
    ],
)
def test_a_device_that_asks_for_something_else_loses_its_lease(text: str, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"waits for the host, but its requests cannot be read|asks for an operator"):
        captured(tmp_path, text)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("aten::from_file.out", "aten::from_file.out uses a file"),
        ("aten::absent.out", "PyTorch has no such operator"),
        ("load_library::x.y", "PyTorch has no such operator"),
    ],
)
def test_only_a_registered_operator_without_a_file_is_computed(kernel: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(RunnerFailed, match=problem):
        captured(tmp_path, json.dumps([NEGATIVE]), kernel)


def test_calls_that_read_the_same_share_a_result() -> None:
    call = {"instruction": 0, "kernel": "aten::neg.out", "arguments": [{"value": "0"}]}
    one, other = np.array([1.0]), np.array([2.0])
    assert kernels.key_of(call, [one]) == kernels.key_of(dict(reversed(call.items())), [one.copy()])
    assert kernels.key_of(call, [one]) != kernels.key_of(call, [other])
