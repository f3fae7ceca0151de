"""The cells that ONNX Runtime can execute, on a device or beside ExecuTorch's runtime."""

from __future__ import annotations

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

CELL = ["model=digits_cnn", "scheme=fp16", "soc=SM8650"]


def test_a_cell_can_run_in_onnxruntime_and_with_a_second_runtime() -> None:
    for more in ("device.runner=onnxruntime", "measure.second_runtime=true"):
        (cell,) = load([*CELL, more]).cells
        assert cell.impossible is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            ["device.runner=onnxruntime", "measure.profile_level=2"],
            "ONNX Runtime logs no times of operators; set measure.profile_level=0, or use runner=python",
        ),
        (
            ["measure.second_runtime=true", "backend=portable", "scheme=fp32"],
            "ONNX Runtime executes no programs of the portable backend; set measure.second_runtime=false",
        ),
        (
            ["device.runner=onnxruntime", "backend=portable", "scheme=fp32"],
            "no device of local is a SM8650 or a simulator host",
        ),
    ],
)
def test_what_onnxruntime_cannot_do_is_said_before_any_work(more: list[str], reason: str) -> None:
    named = {word.partition("=")[0] for word in more}
    (cell,) = load([*(word for word in CELL if word.partition("=")[0] not in named), *more]).cells
    assert cell.impossible == reason


def test_a_board_with_onnxruntime_needs_the_name_of_its_python() -> None:
    board = ["device.transport=ssh", "device.address=me@board", "device.work_folder=/var/tmp/qnnsweep"]
    with pytest.raises(RequestError, match="the Python with onnxruntime-qnn on the device"):
        load([*CELL, *board, "device.runner=onnxruntime"])
