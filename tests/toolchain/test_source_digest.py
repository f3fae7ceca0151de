"""Which code stands behind a model: a change of it is a change of the export's cache key."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.conf.named import SOURCE
from qnnsweep.tasks.toolchain import source_digest
from qnnsweep.tasks.toolchain.source_digest import code_digest, names_of_distributions

FILES = {
    "mine/__init__.py": "",
    "mine/nets.py": "from . import layers\nfrom .deep.blocks import Block\nimport mine.absolute\n",
    "mine/layers.py": "WIDTH = 3\n",
    "mine/absolute.py": "import json\n",
    "mine/deep/__init__.py": "from ..constants import DEPTH\n",
    "mine/deep/blocks.py": "def build():\n    from .late import Late\nclass Block: ...\n",
    "mine/deep/late.py": "Late = 1\n",
    "mine/constants.py": "DEPTH = 2\n",
    "mine/data.py": "import mine.readers as readers\n",
    "mine/readers.py": "",
    "mine/held_out.py": "",
    "mine/unrelated.py": "x = 1\n",
    "weights.bin": "0",
    "labels.txt": "cat dog",
    "images/one.bin": "1",
}
BOMB = "raise SystemExit('this was run')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def config(folder: Path, **changes: Any) -> ModelConfig:
    data = {"labels": str(folder / "labels.txt"), "deep": [{"images": [str(folder / "images" / "one.bin")]}]}
    defaults: dict[str, Any] = {
        "name": "mine",
        "factory": "mine.nets:net",
        "arguments": {
            "width": 3,
            "weights": str(folder / "weights.bin"),
            "text": "no such file",
            "nothing": "",
            "long": "x" * 5000,
            "null": "\0",
        },
        "calibration": DataConfig(source="mine.data:samples", arguments=data),
        "evaluation": DataConfig(source="mine.held_out:samples"),
    }
    return ModelConfig(**defaults | changes)


@pytest.mark.parametrize("name", [name for name in FILES if name != "mine/unrelated.py"])
def test_a_change_in_any_file_behind_the_model_changes_the_digest(name: str, folder: Path) -> None:
    before = code_digest(config(folder))
    (folder / name).write_text(FILES[name] + "# changed\n")
    changed = code_digest(config(folder))
    (folder / name).write_text(FILES[name])
    assert (changed != before, code_digest(config(folder)) == before) == (True, True)


def drop_a_cache(folder: Path) -> None:
    (folder / "mine" / "__pycache__").mkdir()
    (folder / "mine" / "__pycache__" / "nets.cpython-311.pyc").write_bytes(b"compiled")


def touch(folder: Path) -> None:
    (folder / "mine" / "nets.py").touch()


@pytest.mark.parametrize(
    "change",
    [
        drop_a_cache,
        touch,
        lambda folder: (folder / "mine" / "unrelated.py").write_text("x = 2\n"),
        lambda folder: (folder / "images" / "two.bin").write_text("2"),
        lambda folder: (folder / "other.py").write_text("y = 1\n"),
    ],
)
def test_what_the_model_does_not_use_does_not_change_the_digest(change: Callable[[Path], object], folder: Path) -> None:
    before = code_digest(config(folder))
    change(folder)
    assert code_digest(config(folder)) == before


def test_nothing_of_the_users_code_is_run_or_imported(folder: Path) -> None:
    for name in FILES:
        if name.endswith(".py"):
            (folder / name).write_text(FILES[name] + BOMB)
    path, modules = list(sys.path), set(sys.modules)
    code_digest(config(folder))
    assert not [name for name in set(sys.modules) - modules if name.partition(".")[0] == "mine"]
    assert sys.path == path


def test_the_same_code_elsewhere_has_the_same_digest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_digest(config(folder))
    moved = folder / "moved"
    for name, text in FILES.items():
        (moved / name).parent.mkdir(parents=True, exist_ok=True)
        (moved / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(moved), *(entry for entry in sys.path if entry != str(folder))])
    assert code_digest(config(moved)) == before


@pytest.mark.parametrize("factory", ["absent:net", "absent.deeper:net", "mine.absent:net", "mine.nets.absent:net", ":"])
def test_a_module_that_is_missing_gives_a_digest_all_the_same(factory: str, folder: Path) -> None:
    assert code_digest(config(folder, factory=factory)) != code_digest(config(folder))


@pytest.mark.parametrize("text", ["def net(:\n", "\0", "# -*- coding: no-such-coding -*-\nimport mine.layers\n"])
def test_a_file_that_does_not_compile_gives_a_digest_that_changes_with_it(text: str, folder: Path) -> None:
    (folder / "mine" / "nets.py").write_text(text)
    before = code_digest(config(folder))
    (folder / "mine" / "nets.py").write_text(f"{text} ")
    assert code_digest(config(folder)) != before


def test_modules_that_import_each_other_come_to_an_end(folder: Path) -> None:
    (folder / "mine" / "layers.py").write_text("import mine.nets\n")
    assert len(code_digest(config(folder))) == 64


def test_a_model_without_data_has_a_digest(folder: Path) -> None:
    assert code_digest(config(folder, calibration=None, evaluation=None)) != code_digest(config(folder))


@pytest.fixture
def looked_up_again() -> Iterator[None]:
    """Clear the caches: installed distributions are looked up once per process."""
    functions = (source_digest._distributions, source_digest._distributions_of_packages, source_digest._is_editable)
    for cached in functions:
        cached.cache_clear()
    yield
    for cached in functions:
        cached.cache_clear()


def describe(info: Path, version: str) -> None:
    info.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: qnn-sample-net\nVersion: {version}\n"
    (info / ("PKG-INFO" if info.suffix == ".egg-info" else "METADATA")).write_text(text)
    (info / "top_level.txt").write_text("qnn_sample_net\n")


@pytest.mark.usefixtures("looked_up_again")
def test_of_an_installed_distribution_the_version_counts_and_not_the_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = folder / "site"
    info = installed / "qnn_sample_net-1.0.dist-info"
    describe(info, "1.0")
    (installed / "qnn_sample_net.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    assert metadata.version("qnn-sample-net") == "1.0"
    asked = config(folder, factory="qnn_sample_net:net")
    before = code_digest(asked)
    (installed / "qnn_sample_net.py").write_text("changed = True\n")
    assert code_digest(asked) == before
    describe(info, "1.1")
    assert code_digest(asked) != before


@pytest.mark.parametrize("searched", [["site", "project"], ["project", "site"]])
@pytest.mark.usefixtures("looked_up_again")
def test_a_distribution_installed_to_be_edited_is_read_as_files_wherever_it_is_searched_first(
    searched: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, project = folder / "site", folder / "project"
    info = site / "qnn_sample_net-1.0.dist-info"
    describe(info, "1.0")
    (info / "direct_url.json").write_text(f'{{"url": "{project.as_uri()}", "dir_info": {{"editable": true}}}}')
    describe(project / "qnn_sample_net.egg-info", "1.0")  # which building it leaves there
    (project / "qnn_sample_net.py").write_text("")
    for name in reversed(searched):
        monkeypatch.syspath_prepend(folder / name)
    asked = config(folder, factory="qnn_sample_net:net")
    before = code_digest(asked)
    (project / "qnn_sample_net.py").write_text("changed = True\n")
    assert code_digest(asked) != before


def test_this_projects_own_models_are_read_as_files() -> None:
    assert source_digest._distributions("qnnsweep") == []
    source = source_digest._source("qnnsweep.tasks.models.digits")
    assert source is not None
    assert source.name == "digits.py"


def test_of_a_folder_the_names_and_contents_of_its_files_count(folder: Path) -> None:
    model = config(folder)
    model.arguments = {"images": str(folder / "images")}
    digests = [code_digest(model)]
    for name, text in (("one.bin", "12"), ("two.bin", "1"), ("two.bin", "2"), ("deep/three.bin", "")):
        (folder / "images" / name).parent.mkdir(exist_ok=True)
        (folder / "images" / name).write_text(text)
        digests.append(code_digest(model))
    assert len(set(digests)) == 5
    (folder / "images" / "two.bin").touch()
    assert code_digest(model) == digests[-1]


def test_a_folder_with_too_much_to_read_is_known_by_sizes_and_times(folder: Path) -> None:
    model = config(folder)
    model.arguments = {"images": str(folder / "images")}
    large = folder / "images" / "large.bin"
    large.touch()
    os.truncate(large, 3 << 30)  # a sparse file
    begin = time.monotonic()
    before = code_digest(model)
    os.utime(large, (1, 1))
    assert (code_digest(model) != before, time.monotonic() - begin < 1) == (True, True)


def test_the_code_of_a_function_that_yields_samples_counts_although_no_argument_is_a_file(folder: Path) -> None:
    model = config(folder)
    function = folder / "given.py"
    function.write_text("import mine.layers\n\ndef samples(count):\n    return range(count)\n")
    model.evaluation = DataConfig(source=SOURCE, arguments={"samples": f"{function}:samples"})
    digests = [code_digest(model)]
    for changed in (function, folder / "mine" / "layers.py"):
        changed.write_text(changed.read_text() + "# changed\n")
        digests.append(code_digest(model))
    assert len(set(digests)) == 3


def test_a_word_that_is_also_a_folder_here_is_only_a_word(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    model = config(folder)
    model.arguments = {"split": "images"}
    before = code_digest(model)
    (folder / "images" / "two.bin").write_text("2")
    assert code_digest(model) == before


def test_the_distributions_of_every_installed_package_are_those_of_the_standard_library() -> None:
    expected = metadata.packages_distributions()
    assert {package: names_of_distributions(package) for package in expected} == dict(expected)
    assert names_of_distributions("not_installed") == []
