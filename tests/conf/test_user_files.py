"""Functions that are named by the path of a Python file."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

YAML = """
name: my_net
factory: nets/my-net.py:make
evaluation: {source: nets/my-net.py:samples}
calibration: {source: a.b:samples}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "my-net.py").write_text("")
    (tmp_path / "model" / "my_net.yaml").write_text(YAML)
    return tmp_path


def test_a_file_is_found_in_the_folder_of_the_configuration(folder: Path) -> None:
    plan = load(["model=my_net", "scheme=fp16"], config_dirs=[folder])
    model, file = plan.cells[0].request.model, folder / "nets" / "my-net.py"
    assert model.factory == f"{file}:make"
    assert model.evaluation is not None
    assert model.evaluation.source == f"{file}:samples"
    assert model.calibration is not None
    assert model.calibration.source == "a.b:samples"
    assert plan.folders == (folder, folder / "nets")


def test_a_file_is_found_in_the_working_folder_first(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "nets").mkdir()
    (elsewhere / "nets" / "my-net.py").write_text("")
    monkeypatch.chdir(elsewhere)
    (cell,) = load(["model=my_net", "scheme=fp16", "soc=SM8650"], config_dirs=[folder]).cells
    assert cell.request.model.factory == f"{elsewhere}/nets/my-net.py:make"


def test_a_file_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError) as raised:
        load(["model=my_net", "scheme=fp16", "model.factory=nets/net.py:make"], config_dirs=[folder])
    assert str(raised.value) == "model.factory=nets/net.py:make: there is no such file"
