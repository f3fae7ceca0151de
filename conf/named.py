"""Models by name: what `model=timm:resnet18` and the other forms select, as an option of the group `model`."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml

from qnnsweep.conf import language_models
from qnnsweep.conf.errors import RequestError, did_you_mean, printable
from qnnsweep.conf.models import ModelConfig, Split
from qnnsweep.conf.user_files import is_module

FORMS = (
    "timm:NAME",
    "torchvision:NAME",
    "hf:FOLDER",
    "hf:CLASS",
    "llm:FOLDER",
    "FILE.py:FUNCTION",
    "package.module:function",
    "FILE.pt2",
)
"""The forms of a model by name. `CLASS` is a class of transformers."""
KINDS = ("timm:", "torchvision:", "hf:", "llm:")
"""The beginnings of the forms that are no files."""
SOURCE = "qnnsweep.tasks.models.named_samples:samples"
"""The data source of models by name, and of all models whose samples the key `samples` names."""
COUNTS: dict[Split, int] = {"evaluation": 8, "calibration": 16}
_MODULE = "qnnsweep.tasks.models.named"
_FACTORIES = {
    "timm": f"{_MODULE}:timm_model",
    "torchvision": f"{_MODULE}:torchvision_model",
    "hf": f"{_MODULE}:hf_model",
    "program": f"{_MODULE}:saved_program",
}
_NO_CLASSIFIERS = re.compile(
    r"(fcn|deeplabv3|lraspp|fasterrcnn|fcos|keypointrcnn|maskrcnn|retinanet|ssd|ssdlite320|raft)_|ssd300"
)
"""The models of torchvision whose outputs are not scores of classes."""
_GENERIC = {"build", "create", "create_model", "factory", "get_model", "load", "main", "make", "model", "net"}
"""Names of functions that say less about a model than the name of their file."""
_WEIGHTS = (
    "a file of weights has no code; write a function that returns the module, model=my_net.py:make, "
    "or save the program of torch.export as .pt2"
)
_REMEDIES = {
    ".onnx": "an ONNX file is no PyTorch program; write a function that returns the module, model=my_net.py:make",
    ".pte": "a compiled program cannot be compiled again; select the model that it was made of",
    ".py": "name the function in it that returns the module, such as model=my_net.py:make",
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt", ".safetensors"), _WEIGHTS),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedModel:
    """A model that a word selects, without a file of configuration."""

    selector: str
    """A word that selects the model in any process: paths in it are absolute."""
    name: str
    """The name in tables."""
    factory: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    classifier: bool = False
    source: str = SOURCE
    counts: Mapping[Split, int] = field(default_factory=lambda: COUNTS)
    """The most samples per split."""
    folder: Path | None = None
    """The folder of the user's code, whose modules can be imported."""

    @property
    def option(self) -> str:
        """The name of the option, which is the name of its file without the ending."""
        return re.sub(r"[^\w-]", "_", self.name)

    @property
    def with_long_name(self) -> "NamedModel":
        """The model with a name that says where it is from, such as `torchvision_resnet18`."""
        kind = next((kind for kind, factory in _FACTORIES.items() if factory == self.factory), "function")
        return replace(self, name=f"{kind}_{self.name}")

    @property
    def yaml(self) -> str:
        """The contents of the option's file. The inputs are left to the first sample."""
        contents: dict[str, Any] = {
            "name": self.name,
            "factory": self.factory,
            "arguments": self.arguments,
            "inputs": [],
            "calibration": {"source": self.source, "count": self.counts["calibration"]},
            "evaluation": {"source": self.source, "count": self.counts["evaluation"]},
            "classifier": self.classifier,
        }
        return yaml.safe_dump(contents, sort_keys=False, allow_unicode=True)


def named_model(word: str, folders: Sequence[Path] = ()) -> NamedModel | None:
    """Return the model that a word of one of the `FORMS` selects; None if the word has none of them.

    `folders`: the user's folders of configuration, in which modules can be. Paths are relative to the current folder.
    Raises RequestError if a file or a folder is missing, or if the word is a file of another kind. Whether timm,
    torchvision or transformers have the model, only they can say, when they are imported.
    """
    kind, colon, rest = word.partition(":")
    if colon and kind in ("timm", "torchvision"):
        return _of_library(kind, rest, word)
    if colon and kind == "hf":
        return _of_transformers(rest, word)
    if colon and kind == "llm":
        return _of_language_model(rest, word)
    if re.search(r"\.py:[^/]*$", word):
        file, _, function = word.rpartition(":")
        return _of_file(Path(file).expanduser(), function, word)
    if colon and all(map(str.isidentifier, [*kind.split("."), rest])):
        return _of_module(kind, rest, word, (Path.cwd(), *folders))
    ending = Path(word).suffix.lower()
    if ending == ".pt2":
        path = str(_existing(Path(word).expanduser(), word))
        return NamedModel(selector=path, name=Path(path).stem, factory=_FACTORIES["program"], arguments={"file": path})
    if ending in _REMEDIES:
        raise _wrong(word, _REMEDIES[ending])
    return None


def kind_of(model: ModelConfig) -> str | None:
    """Return `timm`, `torchvision`, `hf` or `program`, if the model comes from one of them."""
    return next((kind for kind, factory in _FACTORIES.items() if model.factory == factory), None)


def _of_library(kind: str, architecture: str, word: str) -> NamedModel:
    if not re.fullmatch(r"[\w.-]+", architecture):
        raise _wrong(word, f"write {kind}: and the name of a model, such as {kind}:resnet18")
    classifier = kind == "timm" or not _NO_CLASSIFIERS.match(architecture)
    arguments = {"architecture": architecture}
    return NamedModel(
        selector=word, name=architecture, factory=_FACTORIES[kind], arguments=arguments, classifier=classifier
    )


def _of_transformers(place: str, word: str) -> NamedModel:
    folder = Path(place).expanduser()
    if place and folder.is_dir():
        config = folder / "config.json"
        if not config.is_file():
            raise _wrong(word, f"{printable(folder)} has no config.json; name the folder of a checkpoint")
        folder, classes = folder.resolve(), _architectures(config)
        return NamedModel(
            selector=f"hf:{folder}",
            name=folder.name,
            factory=_FACTORIES["hf"],
            arguments={"checkpoint": str(folder)},
            classifier=_is_classifier(classes[0]) if classes else False,
        )
    if not place.isidentifier():
        raise _wrong(
            word,
            "no such folder; nothing is downloaded: name the folder of a checkpoint, hf:FOLDER, or a class of "
            "transformers with random weights, such as hf:BertModel",
        )
    return NamedModel(
        selector=word,
        name=place,
        factory=_FACTORIES["hf"],
        arguments={"architecture": place},
        classifier=_is_classifier(place),
    )


def _of_language_model(place: str, word: str) -> NamedModel:
    folder = Path(place).expanduser()
    if not place or not folder.is_dir():
        raise _wrong(word, "no such folder; name the folder of a checkpoint, with config.json and *.safetensors")
    folder = folder.resolve()
    language_models.read_decoder(folder, word)
    return NamedModel(
        selector=f"llm:{folder}",
        name=folder.name,
        factory=language_models.FACTORY,
        arguments={"checkpoint": str(folder), **language_models.ARGUMENTS},
        source=language_models.SOURCE,
        counts=language_models.COUNTS,
    )


def _of_file(file: Path, function: str, word: str) -> NamedModel:
    path = _existing(file, word)
    if not function.isidentifier():
        raise _wrong(word, "name the function in it that returns the module, such as my_net.py:make")
    selector = f"{path}:{function}"
    return NamedModel(selector=selector, name=_joined(path.stem, function), factory=selector, folder=path.parent)


def _of_module(module: str, function: str, word: str, folders: Sequence[Path]) -> NamedModel:
    """`folders`: the folders that can have the module, besides those of Python; the first is the current one."""
    top = module.partition(".")[0]
    if not is_module(module, folders):
        guess = did_you_mean(top, ("timm", "torchvision", "hf"))
        raise _wrong(word, f"{guess}there is no module {top}; a model by name is one of {', '.join(FORMS)}")
    name = _joined(module.rpartition(".")[2], function)
    return NamedModel(selector=word, name=name, factory=word, folder=folders[0])


def _joined(module: str, function: str) -> str:
    return module if function in _GENERIC or function == module else f"{module}_{function}"


def _existing(file: Path, word: str) -> Path:
    if not file.is_file():
        raise _wrong(word, f"no such file: {printable(file.absolute())}")
    return file.resolve()


def _architectures(config: Path) -> list[str]:
    with suppress(OSError, ValueError):
        contents: object = json.loads(config.read_text())
        if isinstance(contents, dict):
            classes = cast(dict[str, object], contents).get("architectures")
            return [str(name) for name in cast(list[object], classes)] if isinstance(classes, list) else []
    return []


def _is_classifier(name: str) -> bool:
    return bool(re.search(r"For(Image|Sequence|Audio|Video)Classification", name))


def _wrong(word: str, problem: str) -> RequestError:
    return RequestError(problem, key="model", value=printable(word))
