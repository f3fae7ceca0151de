"""Language models of a checkpoint's folder, `model=llm:FOLDER`: their methods, states and samples."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.models import DataConfig, DriverConfig, InputConfig, MethodConfig, ModelConfig, Split, StateConfig

FACTORY = "qnnsweep.tasks.models.language_model:language_model"
SOURCE = "qnnsweep.tasks.models.language_texts:sequences"
ARGUMENTS = {"context": 128, "ar_len": 32, "new_tokens": 16}
"""The arguments of a language model and their defaults: the number of positions, how many tokens a prefill reads, and
how many tokens follow a text in the evaluation."""
COUNTS: dict[Split, int] = {"evaluation": 4, "calibration": 16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What distinguishes the checkpoints of one family of decoders."""

    name: str
    head: int | None = None
    """The default size of a head; None if it is the width divided by the number of heads."""
    norms: int = 2
    """The number of normalisations per layer."""
    normalises_heads: bool = False
    is_interleaved: bool = False
    """Whether neighbouring values of a head are rotated together, and not its halves."""
    has_window: bool = False
    """Whether some layers have a sliding window, so that the model gets two masks."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of ExecuTorch's `ModelArgs`."""


_CODEGEN = {"model_architecture": "CodeGenModel", "use_ffn_norm": False, "norm_type": "layernorm", "output_bias": True}
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(name="llama"),
    "Qwen2ForCausalLM": Family(name="qwen2"),
    "Qwen3ForCausalLM": Family(name="qwen3", head=128, normalises_heads=True),
    "GemmaForCausalLM": Family(name="gemma", head=256),
    "Gemma2ForCausalLM": Family(name="gemma2", head=256, norms=4, has_window=True),
    "Gemma3ForCausalLM": Family(name="gemma3", head=256, norms=4, has_window=True, normalises_heads=True),
    "Phi3ForCausalLM": Family(name="phi3"),
    "SmolLM3ForCausalLM": Family(name="smollm3"),
    "GraniteForCausalLM": Family(name="granite"),
    "GlmForCausalLM": Family(
        name="glm", head=128, is_interleaved=True, options={"model_architecture": "GlmForCausalLM"}
    ),
    "CodeGenForCausalLM": Family(name="codegen", is_interleaved=True, options=_CODEGEN),
}
"""The families that ExecuTorch's static llama has, by the class in transformers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """The sizes of a decoder that its methods' inputs depend on."""

    family: Family
    layers: int
    heads: int
    """The number of heads of the keys and values."""
    head: int
    """The size of a head."""
    vocabulary: int
    sliding_window: int | None
    """The number of positions that some layers see, all layers of a family without `has_window`; None for all."""


def read_decoder(folder: Path, word: str) -> Decoder:
    """Return the decoder that the folder of a checkpoint has. `word`: the value of the key `model`.

    Raises RequestError if the folder has none that ExecuTorch's static llama can compute.
    """

    def wrong(problem: str) -> RequestError:
        return RequestError(problem, key="model", value=printable(word))

    try:
        whole: object = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise wrong(f"{printable(folder)} has no config.json; name the folder of a checkpoint") from None
    except (OSError, ValueError) as error:
        raise wrong(f"its config.json cannot be read: {printable(error)}") from None
    stated = cast(dict[str, Any], whole) if isinstance(whole, dict) else {}
    classes: object = stated.get("architectures")
    named = str(cast(list[object], classes)[0]) if isinstance(classes, list) and classes else ""
    family = FAMILIES.get(named)
    if family is None:
        has = f"has no {printable(named)}, which its config.json names" if named else "needs a class in its config.json"
        known = ", ".join(name.removesuffix("ForCausalLM") for name in FAMILIES)
        raise wrong(
            f"ExecuTorch's static llama {has}; it has {known}. hf:{printable(folder)} measures a model without a cache"
        )
    config = cast(dict[str, Any], stated.get("text_config") or stated)

    def number(*names: str) -> int:
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise wrong(f"its config.json states no {names[0]}")
        return value

    layers, heads = number("num_hidden_layers", "n_layer"), number("num_attention_heads", "n_head")
    head = config.get("head_dim") or family.head or number("hidden_size", "n_embd") // heads
    return Decoder(
        family=family,
        layers=layers,
        heads=number("num_key_value_heads") if config.get("num_key_value_heads") else heads,
        head=head,
        vocabulary=number("vocab_size"),
        sliding_window=None if config.get("use_sliding_window") is False else config.get("sliding_window"),
    )


def completed(model: ModelConfig, places: Mapping[Split, str | None]) -> ModelConfig:
    """Return a model of `FACTORY` with its methods, states and samples. `places`: the files with texts.

    Raises RequestError for arguments that do not fit each other or the checkpoint.
    """
    folder = Path(str(model.arguments.get("checkpoint")))
    decoder = read_decoder(folder, f"llm:{folder}")
    context, ar_len, new_tokens = (_number(model, name) for name in ARGUMENTS)
    problem = None
    if ar_len + new_tokens >= context:
        problem = f"{ar_len} tokens of a prompt (ar_len) and {new_tokens} new tokens need a larger context"
    elif not decoder.family.has_window and (decoder.sliding_window or context) < context:
        problem = f"larger than the sliding window of this checkpoint, {decoder.sliding_window}"
    if problem is not None:
        raise RequestError(problem, key="model.arguments.context", value=str(context))
    if places["evaluation"] is None:
        evaluation, calibration = (_stated(model, split) for split in COUNTS)
        places = {"evaluation": evaluation, "calibration": places["calibration"] or calibration or evaluation}
    shared = places["evaluation"] is not None and places["evaluation"] == places["calibration"]
    return replace(
        model,
        methods=[
            MethodConfig(name="prefill", inputs=_inputs(decoder, ar_len, context)),
            MethodConfig(name="decode", inputs=_inputs(decoder, 1, context)),
        ],
        states=_states(decoder),
        driver=model.driver or DriverConfig(output="0", input="tokens"),
        evaluation=_data(model, "evaluation", places["evaluation"], shared=shared),
        calibration=_data(model, "calibration", places["calibration"], shared=shared),
    )


def _number(model: ModelConfig, name: str) -> int:
    value: object = model.arguments.get(name, ARGUMENTS[name])
    least = 0 if name == "new_tokens" else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RequestError(f"an integer from {least}", key=f"model.arguments.{name}", value=printable(value))
    return value


def _inputs(decoder: Decoder, tokens: int, context: int) -> list[InputConfig]:
    cached, masks = context - tokens, ["mask", "window_mask"] if decoder.family.has_window else ["mask"]
    layers = range(decoder.layers)
    return [
        InputConfig(name="tokens", shape=[1, tokens], dtype="int32"),
        *(InputConfig(name=name, shape=[1, tokens, context]) for name in masks),
        InputConfig(name="position", shape=[1, tokens], dtype="int32"),
        *(InputConfig(name=f"k_{layer}", shape=[1, decoder.heads, decoder.head, cached]) for layer in layers),
        *(InputConfig(name=f"v_{layer}", shape=[1, decoder.heads, cached, decoder.head]) for layer in layers),
    ]


def _states(decoder: Decoder) -> list[StateConfig]:
    """Return the links: a prefill continues a prefill, and both are continued by a decode."""
    return [
        StateConfig(
            method=method,
            output=f"{group}.{layer}",
            to_method=reader,
            input=f"{letter}_{layer}",
            update="append",
            axis=axis,
        )
        for method, reader in (("prefill", "prefill"), ("prefill", "decode"), ("decode", "decode"))
        for group, letter, axis in ((1, "k", 3), (2, "v", 2))
        for layer in range(decoder.layers)
    ]


def _stated(model: ModelConfig, split: Split) -> str | None:
    """Return the file with texts that the configuration of a model names."""
    data = model.evaluation if split == "evaluation" else model.calibration
    return data.arguments.get("texts") if data is not None and data.source == SOURCE else None


def _data(model: ModelConfig, split: Split, place: str | None, *, shared: bool) -> DataConfig:
    stated = model.evaluation if split == "evaluation" else model.calibration
    if stated is not None and stated.source != SOURCE:
        return stated
    arguments = {**model.arguments, "split": split, "texts": place, "counts": dict(COUNTS) if shared else None}
    return DataConfig(source=SOURCE, arguments=arguments, count=stated.count if stated else COUNTS[split])
