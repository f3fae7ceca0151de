"""The configuration of a device that Qualcomm AI Hub hosts."""

from __future__ import annotations

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

CELL = ["model=digits_cnn", "scheme=fp16", "soc=SM8650", "device=aihub"]
VENV = "python3 -m venv ~/aihub && ~/aihub/bin/pip install qai-hub flatbuffers"
REFUSED = {
    "device.transport=ssh  device.address=me@lab  device.work_folder=/a/b": (
        "device.transport=ssh: local: this machine asks Qualcomm AI Hub for the jobs"
    ),
    "device.python=null": f"device.python=null: the Python of an environment of its own with AI Hub's client: {VENV};",
    "device.aihub.device=' '": "device.aihub.device= : the name of a device that AI Hub hosts",
    "device.soc=null": "device.soc=null: the SoC of the hosted device, such as SM8650",
    "device.soc=probe": "device.soc=probe: the SoC of the hosted device, such as SM8650",
    "device.below_celsius=40": "device.below_celsius=40.0: null: AI Hub tells no temperature",
}


def test_the_device_that_ships_runs_the_cells_of_its_soc_alone() -> None:
    cells = load([*CELL[:2], "device=aihub", "soc=SM8550,SM8650"]).cells
    assert [cell.impossible for cell in cells] == ["no device of aihub is a SM8550 or a simulator host", None]


@pytest.mark.parametrize(("words", "line"), REFUSED.items(), ids=lambda _: "")
def test_a_wrong_hosted_device_is_refused_in_one_line(words: str, line: str) -> None:
    with pytest.raises(RequestError) as caught:
        load([*CELL, *words.split("  ")])
    assert str(caught.value).startswith(line)


IMPOSSIBLE = {
    "measure.profile_level=2": "AI Hub logs no times of operators; set measure.profile_level=0, or use runner=python",
    "measure.performance_mode=burst": (
        "AI Hub chooses the performance mode of its devices; set measure.performance_mode=default"
    ),
}


@pytest.mark.parametrize(("word", "reason"), IMPOSSIBLE.items(), ids=lambda _: "")
def test_what_a_hosted_device_cannot_do_is_said_before_any_work(word: str, reason: str) -> None:
    (cell,) = load([*CELL, word]).cells
    assert cell.impossible == reason
