"""Models of transformers: those of a checkpoint's folder, and classes with random weights. Nothing is downloaded."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from qnnsweep.conf.errors import did_you_mean, printable
from qnnsweep.tasks.errors import RequestError, first_line, raise_shortage
from qnnsweep.tasks.models.optional import missing_extra
from qnnsweep.tasks.models.preparation import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Preparation,
    as_for_imagenet,
    normalised_noise,
)
from qnnsweep.tasks.models.random_weights import measure_batch_norms
from qnnsweep.tasks.models.reproducible import reproducible
from qnnsweep.tasks.models.torchvision_import import torchvision

SEED = 0
TOKENS = 64
"""The default number of tokens of a text."""
_SECONDS_OF_AUDIO = 1

Draw = Callable[[torch.Generator], torch.Tensor]


def hf_model(
    *, checkpoint: str | None = None, architecture: str | None = None, text_length: int = TOKENS, **settings: Any
) -> nn.Module:
    """Return a model of transformers in eval mode, in float32, with eager attention and without a cache.

    `checkpoint`: a folder with config.json. `architecture`: a class, if there is no folder. `text_length`: the number
    of tokens of a text; only the samples use it. `settings`: changes of the configuration.
    The weights are those of the folder, and random without them. Raises RequestError if there is no such class or
    setting.
    """
    del text_length
    kind, config = _configured(checkpoint, architecture, settings)
    for part in (config, config.get_text_config(), config.get_text_config(decoder=True)):
        if getattr(part, "use_cache", False):
            part.use_cache = False
    if checkpoint is not None and _has_weights(Path(checkpoint)):
        model, loading = kind.from_pretrained(
            checkpoint,
            config=config,
            local_files_only=True,
            attn_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
        )
        missing = loading["missing_keys"] or loading["mismatched_keys"]
        model.weights_origin = "pretrained, random" if missing else "pretrained"
    else:
        with reproducible(SEED):
            model = kind._from_config(config, attn_implementation="eager").float().eval()
            if any(isinstance(layer, BatchNorm) for layer in model.modules()):
                inputs = _random_inputs(kind, config, TOKENS)
                if inputs is not None:
                    generator = torch.Generator().manual_seed(SEED)
                    batch = {name: torch.cat([draw(generator) for _ in range(4)]) for name, draw in inputs.items()}
                    measure_batch_norms(model, lambda: model(**batch))
        model.weights_origin = "random"
    return model.eval().requires_grad_(False)


def of_hf(
    checkpoint: str | None = None, architecture: str | None = None, text_length: int = TOKENS, **settings: Any
) -> Preparation:
    """Return the preparation that a checkpoint's processor and tokeniser say. The arguments are those of `hf_model`.

    Without a processor, a picture has the size that the configuration says, and is normalised as for ImageNet.
    """
    kind, config = _configured(checkpoint, architecture, settings)
    inputs = _random_inputs(kind, config, text_length)
    takes_text = "input_ids" in inspect.signature(kind.forward).parameters
    takes_pictures = "pixel_values" in inspect.signature(kind.forward).parameters
    words, picture = _picture(checkpoint, config, settings) if takes_pictures else ("", None)
    text, no_text = _text(kind, config, checkpoint, text_length) if takes_text else (None, Preparation.no_text)
    if set(inputs or ()) - {"pixel_values"} and picture is not None:
        words, picture = "", None  # a picture is only one of the inputs
    return Preparation(
        picture=picture,
        picture_words=words,
        text=text if not takes_pictures else None,
        no_text=no_text if not takes_pictures else "a text is only one of its inputs",
        random=None if inputs is None else lambda generator: {name: draw(generator) for name, draw in inputs.items()},
    )


def import_transformers(name: str) -> Any:
    """Import and return transformers. Raises RequestError that says what to install if it is missing."""
    torchvision()  # transformers imports torchvision, which may need a repair first
    try:
        import transformers
    except ImportError as error:
        raise RequestError(f"model {name} needs transformers ({error}): pip install transformers") from error
    return transformers


def _configured(checkpoint: str | None, architecture: str | None, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the class and the configuration of a model."""
    transformers = import_transformers(str(checkpoint or architecture))
    if checkpoint is None:
        kind = _class(transformers, str(architecture), f"hf:{architecture}")
        config = kind.config_class()
    else:
        try:
            config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise_shortage(error)
            raise RequestError(printable(first_line(error)), key="model", value=f"hf:{checkpoint}") from error
        if not config.architectures:
            problem = "its config.json names no class in `architectures`, so it is not known what to build"
            raise RequestError(problem, key="model", value=f"hf:{checkpoint}")
        kind = _class(transformers, config.architectures[0], f"hf:{checkpoint}")
    return kind, _changed(config, settings)


def _class(transformers: Any, name: str, word: str) -> Any:
    kind = getattr(transformers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel) or kind.config_class is None:
        names = [other for other in dir(transformers) if other.endswith("Model") or "For" in other]
        known = [other for other in names if not other.startswith(("Auto", "TF", "Flax"))]
        problem = f"transformers {transformers.__version__} has no such model; {did_you_mean(name, known)}"
        forms = "hf: needs the folder of a checkpoint, or a class such as BertModel"
        raise RequestError(f"{problem}{forms}", key="model", value=word)
    return kind


def _changed(config: Any, settings: Mapping[str, Any], key: str = "model.arguments") -> Any:
    """Return the configuration with changed settings, which are its attributes, or mappings of those of its parts."""
    for name, value in settings.items():
        if not hasattr(config, name):
            known = [known for known in config.to_dict() if not known.startswith("_")]
            problem = f"{type(config).__name__} has no such setting; {did_you_mean(name, known)}"
            raise RequestError(problem.strip(" ;"), key=f"{key}.{name}", value=printable(value))
        part = getattr(config, name)
        if isinstance(value, Mapping) and hasattr(part, "to_dict"):
            _changed(part, value, f"{key}.{name}")
        else:
            setattr(config, name, value)
    return config


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def _random_inputs(kind: Any, config: Any, tokens: int) -> dict[str, Draw] | None:
    """Return a function per input that the model needs, which draws it; None if it is not known what it needs."""
    accepted = inspect.signature(kind.forward).parameters
    text, inputs = config.get_text_config(), dict[str, Draw]()
    modalities = kind.input_modalities
    modalities = (modalities,) if isinstance(modalities, str) else tuple(modalities or ())
    tokens = _tokens(text, tokens)
    is_translator = bool(getattr(config, "is_encoder_decoder", False))
    if "image" in modalities and "pixel_values" in accepted:
        channels, side = _plane(config)
        mean, std = IMAGENET_MEAN, IMAGENET_STD
        inputs["pixel_values"] = lambda g: normalised_noise(g, (channels, *side), mean, std)
    if "audio" in modalities and "input_values" in accepted:
        inputs["input_values"] = lambda g: torch.randn(1, 16000 * _SECONDS_OF_AUDIO, generator=g)
    if "audio" in modalities and "input_features" in accepted and hasattr(config, "num_mel_bins"):
        frames = 2 * config.max_source_positions
        inputs["input_features"] = lambda g: torch.randn(1, config.num_mel_bins, frames, generator=g)
    if "text" in modalities and "input_ids" in accepted and hasattr(text, "vocab_size"):
        inputs["input_ids"] = lambda g: torch.randint(0, text.vocab_size, (1, tokens), generator=g)
        if "attention_mask" in accepted:
            inputs["attention_mask"] = lambda _: torch.ones(1, tokens, dtype=torch.int64)
    if is_translator and "decoder_input_ids" in accepted:
        vocabulary = config.get_text_config(decoder=True).vocab_size
        inputs["decoder_input_ids"] = lambda g: torch.randint(0, vocabulary, (1, tokens), generator=g)
    return inputs if kind.main_input_name in inputs else None


def _tokens(text: Any, tokens: int) -> int:
    """Return the number of tokens of a text: fewer if the model has fewer positions."""
    positions = [
        getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions", "n_positions")
    ]
    known = [number for number in positions if isinstance(number, int) and number > 0]
    # RoBERTa's positions begin behind the padding token's, so that two of them are no positions.
    return min(tokens, *(number - 2 if number > 2 else number for number in known)) if known else tokens


def _plane(config: Any) -> tuple[int, tuple[int, int]]:
    """Return the number of channels, and the height and the width of a picture."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    return getattr(vision, "num_channels", 3), (height, width)


def _picture(
    checkpoint: str | None, config: Any, settings: Mapping[str, Any]
) -> tuple[str, Callable[[Image.Image], dict[str, torch.Tensor]]]:
    _, (height, width) = _plane(config)
    if checkpoint is not None and Path(checkpoint, "preprocessor_config.json").is_file():
        transformers = import_transformers(checkpoint)
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True)
        except ImportError as error:
            raise missing_extra(Path(checkpoint).name, "zoo", f"its image processor: {error}") from error
        own = {"size": {"height": height, "width": width}} if "image_size" in settings else {}
        return "resized and normalised as preprocessor_config.json says", lambda picture: {
            "pixel_values": processor(images=picture, return_tensors="pt", **own)["pixel_values"]
        }
    side, why = max(height, width), "because there is no preprocessor_config.json"
    words = f"resized to {side} and normalised as for ImageNet, {why}"
    return words, lambda picture: {"pixel_values": as_for_imagenet(picture, (height, width))}


def _text(
    kind: Any, config: Any, checkpoint: str | None, tokens: int
) -> tuple[Callable[[str], dict[str, torch.Tensor]] | None, str]:
    """Return the function that makes the inputs of a text, or None and the reason."""
    if checkpoint is None:
        return None, "a class without a checkpoint has no tokeniser; name a folder that has one, hf:FOLDER"
    transformers = import_transformers(checkpoint)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise_shortage(error)
        return None, f"{Path(checkpoint).name} has no tokeniser that can be read ({printable(first_line(error))})"
    accepted = inspect.signature(kind.forward).parameters
    length = _tokens(config.get_text_config(), tokens)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    decoder = bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in accepted

    def prepared(line: str) -> dict[str, torch.Tensor]:
        encoded = tokenizer(line, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask") if name in accepted}
        if decoder:  # the sentence itself, behind the token that begins it
            start = config.decoder_start_token_id
            inputs["decoder_input_ids"] = encoded["input_ids"].roll(1, dims=1)
            inputs["decoder_input_ids"][:, 0] = 0 if start is None else start
        return inputs

    return prepared, ""
