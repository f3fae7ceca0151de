"""An error of Hydra, OmegaConf or YAML becomes one line that names the file or the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

FILES = {
    "a: [": "{file}, line 1: not YAML: expected the node content, but found '<stream end>' (in model='wrong')",
    "": "model.name: not given; text (in model='wrong')",
    "just text": (
        "model.just text: no such key; did you mean states? in model: arguments, calibration, cases, classifier, "
        "driver, evaluation, factory, inputs, methods, name, states (in model/wrong.yaml)"
    ),
    "- item": (
        "ValidationError raised while composing config: Invalid type assigned: list is not a subclass of "
        "ModelConfig. value: [... (in model/wrong.yaml)"
    ),
    "nam: x": (
        "model.nam: no such key; did you mean name? in model: arguments, calibration, cases, classifier, driver, "
        "evaluation, factory, inputs, methods, name, states (in model/wrong.yaml)"
    ),
    "evaluation: {source: a.b:c, count: some}": "model.evaluation.count=some: a whole number (in model/wrong.yaml)",
    "inputs: [{name: x, shape: [1, wide]}]": (
        "shape[1]=wide: Value 'wide' of type 'str' could not be converted to Integer (in model/wrong.yaml)"
    ),
    "inputs: [{name: x, shap: [1]}]": (
        "shap: no such key; did you mean shape? there are: dtype, name, shape (in model/wrong.yaml)"
    ),
    "arguments: {2: x}": "model.arguments.2: Key 2 (int) is incompatible with (str) (in model/wrong.yaml)",
    "name: ${soc.nam}": "model.name: Interpolation key 'soc.nam' not found (in model='wrong')",
    'name: "\\udcff"\nfactory: a:b': "model.name=\\udcff: not valid Unicode",
    "name: ${model.name}": "model.name: Recursive interpolation detected (in model='wrong')",
    "defaults: [nope]": "Could not load 'model/nope'. (in model/wrong.yaml)",
}


@pytest.mark.parametrize(("text", "line"), FILES.items(), ids=lambda _: "")
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        load([f"model={file}"])
    assert str(caught.value) == line.format(file=file)


def test_defaults_that_lead_back_to_their_option_are_refused_in_one_line(mine: Path) -> None:
    for name, other in (("my_net", "my_other_net"), ("my_other_net", "my_net")):
        file = mine / "model" / f"{name}.yaml"
        file.write_text(f"defaults: [{other}]\n{file.read_text()}")
    with pytest.raises(RequestError) as caught:
        load(["model=my_net"], config_dirs=[mine])
    assert str(caught.value) == (
        "the defaults of an option lead back to it, or values are nested too deeply (in model=my_net)"
    )


def test_an_experiment_whose_defaults_lead_back_to_it_is_refused_in_one_line(mine: Path) -> None:
    (mine / "experiment").mkdir()
    (mine / "experiment" / "cyclic.yaml").write_text("# @package _global_\ndefaults: [cyclic]\n")
    with pytest.raises(RequestError, match=r"^the defaults of an option lead back to it, "):
        load(["experiment=cyclic"], config_dirs=[mine])


@pytest.mark.parametrize("models", ["model=deep", "model=deep,my_net"])
def test_values_that_are_nested_too_deeply_are_refused_in_one_line(mine: Path, models: str) -> None:
    text = (mine / "model" / "my_net.yaml").read_text().replace("my_net", "deep", 1)
    (mine / "model" / "deep.yaml").write_text(text.replace("width: 2", f"width: {'[' * 3000}{']' * 3000}"))
    with pytest.raises(RequestError, match=r"nested too deeply \(in model=deep"):
        load([models], config_dirs=[mine])


def test_an_override_with_too_many_brackets_is_refused_in_one_line() -> None:
    with pytest.raises(RequestError, match=r"^an override has too many brackets|nested too deeply"):
        load([f"+model.arguments.x={'[' * 1900}{']' * 1900}"])


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match=r"^not a text file in UTF-8: .* \(in model='wrong'\)$"):
        load([f"model={file}"])
