"""The models that a name selects, with the samples that they take: of timm, torchvision, transformers and programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.named import hf_model, saved_program, timm_model, torchvision_model
from qnnsweep.tasks.models.named_samples import samples
from qnnsweep.tasks.models.random_weights import LOGIT_SPREAD
from qnnsweep.tasks.models.torchvision_import import torchvision

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
COUNTS = {"evaluation": 2, "calibration": 1}


@pytest.fixture(scope="module")
def transformers() -> Any:
    torchvision()
    import transformers

    return transformers


@pytest.fixture(scope="module")
def tiny_bert(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokeniser of six words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-bert"
    vocabulary = ["[PAD]", "[UNK]", "Hello", "you", "all", "there"]
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=6, max_position_embeddings=16, **TINY)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "pictures" / "red.png"
    file.parent.mkdir()
    Image.new("RGB", (90, 60), (255, 0, 0)).save(file)
    return file


def first(kind: str, model: dict[str, Any], place: Path | None = None, **how: Any) -> Any:
    found = samples(2, split="evaluation", kind=kind, model=model, samples=place and str(place), **how)
    return next(iter(found))


def refused(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(RequestError) as caught:
        list(call(*args, **kwargs))
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_model_of_timm_gets_pictures_as_its_data_configuration_says(picture: Path) -> None:
    model = {"architecture": "test_vit", "size": 32}
    red = first("timm", model, picture)
    torch.testing.assert_close(red["inputs"], torch.tensor([1.0, -1, -1]).view(1, 3, 1, 1).expand(1, 3, 32, 32))
    assert red["origin"] == "red.png, resized to 32 and normalised as timm says"
    vit = timm_model(**model)
    assert (vit(red["inputs"]).shape, vit.weights_origin, vit.training) == ((1, 1000), "random", False)
    noise = first("timm", {"architecture": "test_resnet"})
    assert (noise["inputs"].shape, noise["origin"]) == ((1, 3, 160, 160), "random numbers of seed 0")


def test_a_model_of_torchvision_gets_pictures_as_its_weights_say(picture: Path) -> None:
    model = {"architecture": "squeezenet1_1", "size": 64}
    red = first("torchvision", model, picture)
    expected = (torch.tensor([1.0, 0, 0]) - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(red["inputs"], expected.view(1, 3, 1, 1).expand(1, 3, 64, 64))
    net = torchvision_model(**model)
    spread = net(first("torchvision", model)["inputs"]).std()
    assert (net.weights_origin, bool(LOGIT_SPREAD / 4 < spread < LOGIT_SPREAD * 4)) == ("random", True)


def test_a_picture_for_torchvision_is_what_the_transforms_of_the_weights_make_of_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pixels = (torch.rand(30, 40, 3) * 255).to(torch.uint8).numpy()
    file = tmp_path / "noise.png"
    Image.fromarray(pixels).resize((400, 300), Image.Resampling.BICUBIC).save(file)
    package = torchvision()
    assert package is not None
    transforms = package.models.get_model_weights("squeezenet1_1").DEFAULT.transforms()
    expected = transforms(Image.open(file)).unsqueeze(0)
    found = first("torchvision", {"architecture": "squeezenet1_1"}, file)["inputs"]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_model_of_torchvision_that_is_no_classifier_runs_on_random_numbers() -> None:
    model = {"architecture": "lraspp_mobilenet_v3_large", "size": 64}
    net = torchvision_model(**model)
    assert net(first("torchvision", model)["inputs"])["out"].shape == (1, 21, 64, 64)
    assert refused(samples, 1, split="evaluation", kind="torchvision", model={"architecture": "raft_small"}) == (
        "samples: the inputs of this model are not known; give samples=FILE (.npy, .npz, .safetensors) or "
        "samples=FILE.py:FUNCTION"
    )


def test_a_model_of_torchvision_with_auxiliary_heads_has_one_output() -> None:
    net = torchvision_model(architecture="googlenet", size=64)
    assert net(torch.ones(1, 3, 64, 64)).shape == (1, 1000)
    assert (net.aux1, net.aux2, net.weights_origin) == (None, None, "random")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Path]:
    before = torch.hub.get_dir()
    torch.hub.set_dir(tmp_path / "hub")
    yield tmp_path / "hub"
    torch.hub.set_dir(before)


def test_pretrained_weights_are_used_if_they_are_on_this_machine(hub: Path) -> None:
    package = torchvision()
    assert package is not None
    torch.manual_seed(5)
    state = package.models.squeezenet1_1(weights=None).state_dict()
    url = package.models.get_model_weights("squeezenet1_1").DEFAULT.url
    (hub / "checkpoints").mkdir(parents=True)
    torch.save(state, hub / "checkpoints" / url.rpartition("/")[2])
    net = torchvision_model(architecture="squeezenet1_1")
    assert net.weights_origin == "pretrained"
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in state.items())
    problem = refused(torchvision_model, architecture="squeezenet1_1", num_classes=3)
    assert problem.startswith("model.arguments: the pretrained weights do not fit a model with these arguments (")


def test_a_checkpoint_has_its_weights_and_its_tokeniser(tiny_bert: Path, tmp_path: Path) -> None:
    model = {"checkpoint": str(tiny_bert), "text_length": 8}
    lines = tmp_path / "lines.txt"
    lines.write_text("Hello you there\n\nall ham\nall\n")
    (hello, unknown) = samples(2, split="evaluation", kind="hf", model=model, samples=str(lines))
    assert hello["inputs"]["input_ids"].tolist() == [[2, 3, 5, 0, 0, 0, 0, 0]]
    assert unknown["inputs"]["attention_mask"].tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]]
    assert (hello["name"], hello["origin"]) == ("Hello you there", "lines of lines.txt, tokenised")
    bert = hf_model(**model)
    assert (bert.weights_origin, bert(**hello["inputs"]).logits.shape) == ("pretrained", (1, 2))
    weights = bert.state_dict()["classifier.weight"]
    torch.manual_seed(3)
    assert torch.equal(hf_model(**model).state_dict()["classifier.weight"], weights)


def test_a_checkpoint_of_pictures_has_its_processor_and_random_weights_without_a_file_of_weights(
    transformers: Any, tmp_path: Path, picture: Path
) -> None:
    folder = tmp_path / "tiny-vit"
    config = transformers.ViTConfig(image_size=32, patch_size=8, architectures=["ViTForImageClassification"], **TINY)
    config.save_pretrained(folder)
    model = {"checkpoint": str(folder)}
    assert first("hf", model, picture)["origin"] == (
        "red.png, resized to 32 and normalised as for ImageNet, because there is no preprocessor_config.json"
    )
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(folder)
    red = first("hf", model, picture)
    expected = processor(images=Image.open(picture), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(red["inputs"], {"pixel_values": expected}, rtol=0, atol=0)
    assert red["origin"] == "red.png, resized and normalised as preprocessor_config.json says"
    vit = hf_model(**model)
    assert (vit.weights_origin, vit(**red["inputs"]).logits.shape) == ("random", (1, 2))


SMALL = {"num_hidden_layers": 1}
CLASSES: Sequence[tuple[str, dict[str, Any], list[str]]] = [
    ("BertModel", SMALL, ["input_ids", "attention_mask"]),
    ("RobertaForSequenceClassification", SMALL, ["input_ids", "attention_mask"]),
    ("GPT2LMHeadModel", {"n_layer": 1}, ["input_ids", "attention_mask"]),
    ("LlamaForCausalLM", SMALL | {"hidden_size": 64, "intermediate_size": 64}, ["input_ids", "attention_mask"]),
    ("T5Model", {"num_layers": 1}, ["input_ids", "attention_mask", "decoder_input_ids"]),
    ("WhisperModel", {"encoder_layers": 1, "decoder_layers": 1}, ["input_features", "decoder_input_ids"]),
    ("CLIPModel", {"text_config": SMALL, "vision_config": SMALL}, ["input_ids", "pixel_values", "attention_mask"]),
    ("ResNetForImageClassification", {"depths": [1, 1, 1, 1]}, ["pixel_values"]),
    ("SegformerModel", {"depths": [1, 1, 1, 1]}, ["pixel_values"]),
    ("Wav2Vec2Model", SMALL, ["input_values"]),
]


@pytest.mark.parametrize(("architecture", "settings", "inputs"), CLASSES, ids=lambda part: part if str(part) else "")
def test_a_class_of_transformers_runs_on_random_inputs_of_its_kind(
    architecture: str, settings: dict[str, Any], inputs: list[str]
) -> None:
    model = {"architecture": architecture, **settings}
    drawn = first("hf", model)["inputs"]
    assert sorted(drawn) == sorted(inputs)
    module = hf_model(**model)
    with torch.no_grad():
        outputs = module(**drawn)
    assert (module.weights_origin, module.dtype) == ("random", torch.float32)
    assert bool(outputs[0].isfinite().all())
    assert "past_key_values" not in outputs


def test_a_saved_program_gets_numbers_like_its_example_inputs(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, ids: torch.Tensor) -> torch.Tensor:
            return x[:, :2] + ids

    file = str(tmp_path / "net.pt2")
    example = torch.full((1, 400), 50.0) + torch.arange(400) % 3
    program = torch.export.export(Net(), (example,), {"ids": torch.tensor([[3, 9]])})
    torch.export.save(program, file)
    drawn = first("program", {"file": file})["inputs"]
    assert (list(drawn), abs(float(drawn["x"].mean()) - 51) < 0.2) == (["x", "ids"], True)
    assert set(drawn["ids"].flatten().tolist()) <= set(range(3, 10))
    module: Any = saved_program(file=file)
    torch.testing.assert_close(module(*drawn.values()), drawn["x"][:, :2] + drawn["ids"])


def test_what_a_library_does_not_have_is_refused_with_the_nearest_names(tiny_bert: Path, tmp_path: Path) -> None:
    assert refused(timm_model, architecture="test_resne") == (
        "model=timm:test_resne: no such model in timm; did you mean test_resnet? timm.list_models() has all"
    )
    assert refused(torchvision_model, architecture="squeezenet1_2").startswith(
        "model=torchvision:squeezenet1_2: no such model in torchvision; did you mean squeezenet1_0 or squeezenet1_1? "
    )
    assert "did you mean BertModel? hf: needs" in refused(hf_model, architecture="BertModle")
    assert "has no such model" in refused(hf_model, architecture="BertConfig")
    assert refused(hf_model, architecture="BertModel", num_hidden_layer=1) == (
        "model.arguments.num_hidden_layer=1: BertConfig has no such setting; did you mean num_hidden_layers?"
    )
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert refused(hf_model, checkpoint=str(tmp_path)) == (
        f"model=hf:{tmp_path}: its config.json names no class in `architectures`, so it is not known what to build"
    )
    (tmp_path / "net.pt2").write_text("no program")
    problem = refused(saved_program, file=str(tmp_path / "net.pt2"))
    assert problem.startswith(f"model={tmp_path}/net.pt2: not a program of torch.export that this PyTorch can read (")
    (tmp_path / "a.txt").write_text("a")
    problem = refused(
        samples, 1, split="evaluation", kind="hf", model={"architecture": "BertModel"}, samples=f"{tmp_path}/a.txt"
    )
    assert problem.endswith("a class without a checkpoint has no tokeniser; name a folder that has one, hf:FOLDER")


CALL = """
import sys
from qnnsweep.tasks.errors import RequestError
sys.modules[sys.argv[1]] = None  # Python's documented way to make an import fail
from qnnsweep.tasks.models import named
try:
    getattr(named, sys.argv[2])(architecture=sys.argv[3])
except RequestError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "factory", "architecture", "line"),
    [
        ("timm", "timm_model", "resnet18", "model resnet18 needs the optional extra zoo (timm: {}): {}"),
        ("torchvision", "timm_model", "resnet18", "model resnet18 needs the optional extra zoo ({}): {}"),
        ("torchvision", "torchvision_model", "alexnet", "model alexnet needs the optional extra zoo ({}): {}"),
    ],
)
def test_without_a_package_the_message_says_what_to_install(
    package: str, factory: str, architecture: str, line: str
) -> None:
    argv = [sys.executable, "-c", CALL, package, factory, architecture]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    problem = "import of timm halted; None in sys.modules" if package == "timm" else "torchvision is not installed"
    assert printed == line.format(problem, "pip install 'qnnsweep[zoo]'")


def test_without_transformers_the_message_says_what_to_install() -> None:
    argv = [sys.executable, "-c", CALL, "transformers", "hf_model", "BertModel"]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    assert printed == (
        "model BertModel needs transformers (import of transformers halted; None in sys.modules): "
        "pip install transformers"
    )
