"""ExecuTorch's static llama with the weights of a file in the format of llama2.c, such as those of stories260K."""

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.llama import LlamaSizes, causal_mask
from qnnsweep.tasks.models.static_llama import HIDDEN, as_convolutions, static_llama_classes

BEGIN = 1
"""The token with which every text begins."""
_HEADER = struct.Struct("<7i")
_WHERE = "the absolute path of stories260K.bin, of the repository karpathy/tinyllamas on Hugging Face"


def static_llama(weights: str | None, tokenizer: str | None = None, tokens: int = 1, context: int = 128) -> nn.Module:
    """Return ExecuTorch's static llama.

    `weights`, `tokenizer`: files in the format of llama2.c. Without a tokenizer, tokens have no text. `tokens`: how
    many tokens a call reads. `context`: the number of positions. Raises RequestError if a file is missing or damaged.
    """
    sizes, values = _read(weights)
    vocabulary = None if tokenizer is None else _vocabulary(tokenizer, sizes.vocabulary)
    llama, _, model_arguments, _ = static_llama_classes()
    arguments = model_arguments(
        dim=sizes.width,
        n_layers=sizes.layers,
        n_heads=sizes.heads,
        n_kv_heads=sizes.kv_heads,
        vocab_size=sizes.vocabulary,
        hidden_dim=sizes.hidden,
        multiple_of=4,
        max_seq_len=context,
        max_context_len=context,
        norm_eps=1e-5,
    )
    settings: dict[str, Any] = {"max_batch_size": 1, "use_kv_cache": True, "ar_len": tokens, "kv_io_bit_width": 16}
    for name, value in (settings | {"enable_r3": False}).items():
        setattr(arguments, name, value)
    only_new: dict[str, Any] = {"output_new_cache_only": True, "output_cache": True, "use_i64_token": False}
    model = llama(arguments, ar_len=tokens, **only_new)
    model.load_state_dict(_state(sizes, values), strict=True)
    module = as_convolutions(model).eval().requires_grad_(False)
    module.weights_origin = "pretrained"
    module.vocabulary = vocabulary
    return module


def story(count: int, *, context: int = 128, prefill: int = 32, steps: int = 60) -> list[dict[str, Any]]:
    """Return one or two sequences: the first `steps` tokens one by one, and a prefill of a prompt with some more."""
    return list(islice(_sequences(context, prefill, steps), count))


PROMPT = (
    *(1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426),
    *(338, 401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426),
)
"""The first tokens that stories260K itself writes."""


def _sequences(context: int, prefill: int, steps: int) -> Iterator[dict[str, Any]]:
    begin = torch.tensor([[BEGIN]], dtype=torch.int32)
    alone = [{"method": "decode", "inputs": _where(1, context, number)} for number in range(steps)]
    alone[0]["inputs"]["tokens"] = begin
    yield {"name": "from the beginning", "steps": alone}
    prompt = torch.tensor([PROMPT[:prefill]], dtype=torch.int32)
    after = [{"method": "decode", "inputs": _where(1, context, prefill + number)} for number in range(8)]
    first = {"method": "prefill", "inputs": {"tokens": prompt, **_where(prefill, context, 0)}}
    yield {"name": "after a prompt", "steps": [first, *after]}


def _where(tokens: int, context: int, start: int) -> dict[str, torch.Tensor]:
    """Return the inputs that say where a step's tokens are."""
    mask = causal_mask(tokens, context, start)[0]
    position = torch.arange(start, start + tokens, dtype=torch.int32)[None]
    return {"mask": torch.where(mask == 0, 0.0, HIDDEN), "position": position}


def _read(path: str | None) -> tuple[LlamaSizes, np.ndarray]:
    """Return the sizes and the values of a file of weights."""
    if path is None or not Path(path).is_file():
        raise RequestError(f"model.arguments.weights={path}: no such file; {_WHERE}")
    data = Path(path).read_bytes()
    if len(data) < _HEADER.size:
        raise RequestError(f"model.arguments.weights={path}: not a file of weights of llama2.c; {_WHERE}")
    width, hidden, layers, heads, kv_heads, vocabulary, _ = _HEADER.unpack(data[: _HEADER.size])
    sizes = LlamaSizes(vocabulary=vocabulary, width=width, layers=layers, heads=heads, kv_heads=kv_heads, hidden=hidden)
    values = np.frombuffer(data[_HEADER.size : len(data) - len(data) % 4], "<f4")
    if min(width, hidden, layers, heads, kv_heads, vocabulary) < 1 or values.size < _count(sizes):
        raise RequestError(f"model.arguments.weights={path}: not a file of shared weights of llama2.c; {_WHERE}")
    return sizes, values


def _count(sizes: LlamaSizes) -> int:
    """Return the number of values that the model needs."""
    width, keys = sizes.width, sizes.kv_heads * sizes.head
    layer = 2 * width + 2 * width * width + 2 * keys * width + 3 * sizes.hidden * width
    return sizes.vocabulary * width + sizes.layers * layer + width


def _state(sizes: LlamaSizes, values: np.ndarray) -> dict[str, torch.Tensor]:
    """Return the weights under the names of the static llama. The output has the weights of the embedding."""
    position = 0

    def part(*shape: int) -> torch.Tensor:
        nonlocal position
        start, position = position, position + int(np.prod(shape))
        return torch.from_numpy(values[start:position].copy()).reshape(shape)

    width, keys, layers = sizes.width, sizes.kv_heads * sizes.head, range(sizes.layers)
    state = {"tok_embeddings.weight": part(sizes.vocabulary, width)}
    shapes = {
        "attention_norm": (width,),
        "attention.wq": (width, width),
        "attention.wk": (keys, width),
        "attention.wv": (keys, width),
        "attention.wo": (width, width),
        "ffn_norm": (width,),
        "feed_forward.w1": (sizes.hidden, width),
        "feed_forward.w2": (width, sizes.hidden),
        "feed_forward.w3": (sizes.hidden, width),
    }
    heads = {"attention.wq": sizes.heads, "attention.wk": sizes.kv_heads}
    for name, shape in shapes.items():
        of_layers = part(sizes.layers, *shape)
        for layer in layers:
            weight = of_layers[layer].clone()
            state[f"layers.{layer}.{name}.weight"] = _halved(weight, heads[name]) if name in heads else weight
    state["norm.weight"] = part(width)
    state["output.weight"] = state["tok_embeddings.weight"].clone()
    return state


def _halved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a weight whose heads are two halves, which are rotated together, instead of neighbouring pairs."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _vocabulary(path: str, size: int) -> list[str]:
    """Return the texts of the tokens: after the longest length, each has a score, a length and its bytes."""
    if not Path(path).is_file():
        raise RequestError(f"model.arguments.tokenizer={path}: no such file; the tokenizer that belongs to the weights")
    data, texts, position = Path(path).read_bytes(), list[str](), 4
    for _ in range(size):
        _, length = struct.unpack_from("<fi", data, position)
        position += 8 + length
        texts.append(data[position - length : position].decode(errors="replace"))
    return texts
