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


METRICS = "import math\nfrom a import b as c\nnumber = 3\nif number:\n    def worst(x, y): ...\nclass Kind: ...\n"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mine.worst", None), ("mine.number", None), ("mine.Kind", None), ("mine.c", None), ("mine.math", None),
        ("mine.wurst", "did you mean worst? {folder}/mine.py has no wurst"),
        ("mine.b", "{folder}/mine.py has no b"),
        ("package.inner.worst", None),
        ("package.inner.wurst", "did you mean worst? {folder}/package/inner.py has no wurst"),
        ("package.any_name", None), ("broken.any_name", None), ("json.dumps", None), ("json.no_such_name", None),
        ("__main__.f", "there is no module __main__; modules in a --config-dir can be imported"),
        ("nowhere.inner.f", "there is no module nowhere; modules in a --config-dir can be imported"),
    ],
)  # fmt: skip
def test_a_metric_that_is_missing_is_refused_before_any_work(folder: Path, name: str, problem: str | None) -> None:
    (folder / "package").mkdir()
    for file in ("mine.py", "package/inner.py"):
        (folder / file).write_text(METRICS)
    (folder / "package" / "__init__.py").write_text("from package.inner import *\n")
    (folder / "broken.py").write_text("def f(:\n")
    function = ":".join(name.rsplit(".", 1))
    words = ["model=my_net", "scheme=fp16", f"measure.metrics=[{function}]"]
    if problem is None:
        assert load(words, config_dirs=[folder]).cells[0].request.measure.metrics == [function]
        return
    with pytest.raises(RequestError) as raised:
        load(words, config_dirs=[folder])
    assert str(raised.value) == f"measure.metrics={function}: {problem.format(folder=folder)}"


def test_a_folder_with_nothing_but_a_module_can_have_a_metric(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def worst(actual, reference): ...\n")
    plan = load(["model=digits_cnn", "measure.metrics=[mine:worst]"], config_dirs=[tmp_path])
    assert plan.folders == (tmp_path,)


def test_a_file_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError) as raised:
        load(["model=my_net", "scheme=fp16", "model.factory=nets/net.py:make"], config_dirs=[folder])
    assert str(raised.value) == "model.factory=nets/net.py:make: there is no such file"
