"""Models by name and samples from files become options and data sources, and a wrong name is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load, shards
from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.conf.named import FORMS, SOURCE
from qnnsweep.conf.schema import Request

NAMED = "qnnsweep.tasks.models.named"
COUNTS = {"evaluation": 8, "calibration": 16}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files of a user. None of them is read before the export."""
    for name in ("my_net.py", "pack/nets.py", "pack/conf/model/mine.yaml", "net.pt2", "x.npy", "net.onnx", "net.pth"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tiny-bert").mkdir()
    config = {"architectures": ["BertForSequenceClassification"]}
    (tmp_path / "tiny-bert" / "config.json").write_text(json.dumps(config))
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(*overrides: str) -> Request:
    (cell,) = load(overrides).cells
    return cell.request


def refused(*overrides: str) -> str:
    with pytest.raises(RequestError) as caught:
        load(overrides)
    assert str(caught.value).isprintable()
    return str(caught.value)


def by_name(name: str, factory: str, kind: str | None, arguments: dict[str, Any], **others: Any) -> ModelConfig:
    """Return a model by name with random samples, or with those of `others`."""
    place, classifier = others.get("samples"), others.get("classifier", False)
    of_kind = {} if kind is None else {"kind": kind, "model": arguments}

    def data(split: str) -> DataConfig:
        named = {"split": split, "samples": place, "counts": COUNTS, "inputs": []}
        return DataConfig(source=SOURCE, arguments={**named, **of_kind}, count=COUNTS[split])

    return ModelConfig(
        name=name,
        factory=factory,
        arguments=arguments,
        evaluation=data("evaluation"),
        calibration=data("calibration"),
        classifier=classifier,
    )


def test_a_model_of_a_library_is_selected_by_its_name(here: Path) -> None:
    resnet = {"architecture": "resnet18"}
    timm = by_name("resnet18", f"{NAMED}:timm_model", "timm", resnet, classifier=True)
    assert request("model=timm:resnet18").model == timm
    squeezenet = {"architecture": "squeezenet1_1"}
    expected = by_name("squeezenet1_1", f"{NAMED}:torchvision_model", "torchvision", squeezenet, classifier=True)
    assert request("model=torchvision:squeezenet1_1").model == expected
    assert not request("model=torchvision:fcn_resnet50").model.classifier
    bert = {"architecture": "BertModel", "num_hidden_layers": 2}
    expected = by_name("BertModel", f"{NAMED}:hf_model", "hf", bert)
    assert request("model=hf:BertModel", "+model.arguments.num_hidden_layers=2").model == expected


def test_a_folder_or_a_file_is_selected_by_its_path_relative_to_the_current_folder(here: Path) -> None:
    checkpoint = {"checkpoint": f"{here}/tiny-bert"}
    expected = by_name("tiny-bert", f"{NAMED}:hf_model", "hf", checkpoint, classifier=True)
    assert request("model=hf:tiny-bert/").model == expected
    program = {"file": f"{here}/net.pt2"}
    assert request("model=net.pt2").model == by_name("net", f"{NAMED}:saved_program", "program", program)
    expected = by_name("my_net", f"{here}/my_net.py:make", None, {}, samples=f"{here}/x.npy")
    assert request("model=my_net.py:make", "samples=x.npy").model == expected
    assert load(["model=my_net.py:make", "samples=pack/nets.py:f"]).folders == (here, here / "pack")
    expected = by_name("nets_small", "pack.nets:small", None, {}, samples="pack.nets:samples")
    planned = load(["model=pack.nets:small", "samples=pack.nets:samples"])
    assert (planned.cells[0].request.model, planned.folders) == (expected, (here,))


def test_models_by_name_and_by_file_are_swept_together(here: Path) -> None:
    plan = load(["model=digits_cnn,timm:resnet18.a1_in1k,hf:tiny-bert,torchvision:mobilenet_v2"])
    names = [cell.request.names[0] for cell in plan.cells]
    assert names == ["digits_cnn", "resnet18.a1_in1k", "tiny-bert", "torchvision_mobilenet_v2"]


def test_a_shard_selects_the_same_model_and_samples_from_any_folder(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["model=my_net.py:make,timm:resnet18,hf:tiny-bert,net.pt2", "samples=x.npy"]
    expected = [cell.request.model for cell in load(overrides).cells]
    parts = shards(overrides)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert [cell.request.model for part in parts for cell in load(part).cells] == expected


def test_samples_are_for_a_model_with_a_file_too_and_keep_its_counts(here: Path) -> None:
    model = request("model=digits_cnn", "samples=x.npy", "model.evaluation.count=3").model
    assert (model.evaluation, model.calibration) != (None, None)
    assert model.evaluation is not None
    assert (model.evaluation.source, model.evaluation.count) == (SOURCE, 3)
    assert model.evaluation.arguments["inputs"] == [["image", [1, 1, 8, 8], "float32"]]
    configured = request("model=digits_cnn").model
    only_calibration = request("model=digits_cnn", "calibration=x.npy").model
    assert only_calibration.evaluation == configured.evaluation
    assert only_calibration.calibration is not None
    assert only_calibration.calibration.arguments["samples"] == f"{here}/x.npy"
    assert only_calibration.calibration.arguments["counts"] is None


def test_a_place_can_look_like_a_number_and_null_is_no_place(here: Path) -> None:
    (here / "007").mkdir()
    model = request("model=timm:resnet18", "samples=007").model
    assert model.evaluation is not None
    assert model.evaluation.arguments["samples"] == f"{here}/007"
    assert request("model=timm:resnet18", "samples=null").model == request("model=timm:resnet18").model


def test_two_places_are_not_divided_and_one_is(here: Path) -> None:
    apart = request("model=timm:resnet18", "samples=flat", "calibration=x.npy").model
    together = request("model=timm:resnet18", "samples=flat", "calibration=flat").model
    for model, counts in ((apart, None), (together, COUNTS)):
        for data in (model.evaluation, model.calibration):
            assert data is not None
            assert data.arguments["counts"] == counts


def test_a_folder_of_folders_makes_a_classifier(here: Path) -> None:
    code = "model=my_net.py:make"
    classifiers = [request(code, f"samples={folder}").model.classifier for folder in ("pictures", "flat")]
    assert classifiers == [True, False]


def test_the_words_of_a_request_make_its_program_again(here: Path) -> None:
    asked = request("model=timm:resnet18", "+model.arguments.size=32", "samples=flat", "+model.arguments.my_key=x")
    assert asked.program_words == [
        "model=timm:resnet18", "+model.arguments.size=32", f"samples={here}/flat", "+model.arguments.my_key=***",
    ]  # fmt: skip
    names, changed = ["model=digits_cnn", "scheme=8a8w"], ["model.evaluation.count=2", "scheme.name=mine"]
    assert request(*names, *changed, "measure.cures=2").program_words == [*names, *changed]
    assert request(*names, "measure.cures=2").program_words == []
    assert request("model.name=mine", "scheme=8a8w").program_words == ["scheme=8a8w", "model.name=mine"]
    secret = request("+model.arguments.pin=1234", "masked_names=pin").program_words
    assert secret == ["+model.arguments.pin=***"]


FORMS_IN_WORDS = ", ".join(FORMS)
REFUSALS = {
    "model=resnet18": f"; or a model by name: {FORMS_IN_WORDS}",
    "model=tim:resnet18": (
        f"model=tim:resnet18: did you mean timm? there is no module tim; a model by name is one of {FORMS_IN_WORDS}"
    ),
    "model='timm:'": "model=timm:: write timm: and the name of a model, such as timm:resnet18",
    "model=hf:no/where": (
        "model=hf:no/where: no such folder; nothing is downloaded: name the folder of a checkpoint, hf:FOLDER, or a "
        "class of transformers with random weights, such as hf:BertModel"
    ),
    "model=hf:flat": "model=hf:flat: flat has no config.json; name the folder of a checkpoint",
    "model=my_net.py": (
        "model=my_net.py: name the function in it that returns the module, such as model=my_net.py:make"
    ),
    "model=net.onnx": (
        "model=net.onnx: an ONNX file is no PyTorch program; write a function that returns the module, "
        "model=my_net.py:make"
    ),
    "model=net.pth": (
        "model=net.pth: a file of weights has no code; write a function that returns the module, model=my_net.py:make, "
        "or save the program of torch.export as .pt2"
    ),
    "model=pack.nets:make": (
        "samples: the inputs of pack.nets:make are not known; give samples=FILE (.npy, .npz, .safetensors), "
        "samples=FOLDER of images, or samples=FILE.py:FUNCTION"
    ),
    "model=nets.py:small,my_net.py:make": "model=nets.py:small: no such file: HERE/nets.py",
    "model=timm:resnet18,torchvision:resnet18": (
        "model=torchvision:resnet18: timm:resnet18 has the same name, resnet18; give this one another name: "
        "`qnnsweep init model torchvision:resnet18 --name NAME` writes its file of configuration"
    ),
    "samples=nowhere": (
        "samples=HERE/nowhere: no such file or folder; `samples` is where the samples of digits_cnn are"
    ),
    "samples=": "samples=: empty; null, or the place of the samples",
    "samples=none.py:f": "samples=HERE/none.py:f: no such file",
}


@pytest.mark.parametrize("override", REFUSALS)
def test_a_wrong_name_is_refused_in_one_line_that_says_what_to_write(here: Path, override: str) -> None:
    model = [] if override.startswith("model") else ["model=digits_cnn"]
    assert refused(*model, override).endswith(REFUSALS[override].replace("HERE", str(here)))


def test_samples_are_refused_for_a_model_whose_samples_are_more_than_inputs(here: Path) -> None:
    problem = "only valid for a model with one method and without states; tiny_gru has its own"
    assert refused("model=tiny_gru", "samples=x.npy") == f"samples={here}/x.npy: {problem}"
