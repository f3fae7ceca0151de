"""The example in docs/models.md works as it is written there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from qnnsweep.conf.load import load

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


def block(language: str) -> str:
    """Return the first block of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), flags=re.DOTALL | re.MULTILINE)[0]


def test_the_documented_model_computes_outputs_for_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "my_net.yaml").write_text(block("yaml"))
    (tmp_path / "my_net.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    model = load(["model=my_net"], config_dirs=[tmp_path]).cells[0].request.model
    assert (model.factory, model.arguments, model.evaluation is not None) == ("my_net:my_net", {"width": 16}, True)
    code = import_module("my_net")
    module, samples = code.my_net(**model.arguments), list(code.noise(4, seed=2))
    with torch.no_grad():
        assert [tuple(module(**sample["inputs"]).shape) for sample in samples] == [(1, 10)] * 4
    assert [list(sample["inputs"]["image"].shape) for sample in samples] == [model.inputs[0].shape] * 4


def test_every_shipped_model_is_in_the_table() -> None:
    shipped = {file.stem for file in (DOCUMENT.parents[1] / "conf" / "model").glob("*.yaml")}
    rows = [line.split("|")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    keys_of_samples = {"inputs", "label", "name", "method", "keep"}
    documented = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} - keys_of_samples
    assert documented == shipped
