"""A decoder of a checkpoint's folder, as Hugging Face writes it, in the form of ExecuTorch's static llama."""

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from qnnsweep.conf.errors import printable
from qnnsweep.conf.language_models import ARGUMENTS, FAMILIES, Family
from qnnsweep.tasks.errors import RequestError, first_line, raise_shortage
from qnnsweep.tasks.models.hugging_face import import_transformers
from qnnsweep.tasks.models.static_llama import as_convolutions, static_llama_classes

Weights = dict[str, torch.Tensor]

_NAMES = {
    r"model\.embed_tokens\.": "tok_embeddings.",
    r"model\.norm\.": "norm.",
    r"lm_head\.": "output.",
    r"model\.layers\.(\d+)\.": r"layers.\1.",
    r"self_attn\.([qkv])_proj\.": r"attention.w\1.",
    r"self_attn\.([qk])_norm\.": r"attention.\1_norm_fn.",
    r"self_attn\.o_proj\.": "attention.wo.",
    r"input_layernorm\.": "attention_norm.",
    r"mlp\.gate_proj\.": "feed_forward.w1.",
    r"mlp\.down_proj\.": "feed_forward.w2.",
    r"mlp\.up_proj\.": "feed_forward.w3.",
}
"""Patterns of the names of a checkpoint's tensors, and the static llama's names, for most families."""
_NORMS = {r"post_attention_layernorm\.": "ffn_norm."}
_FOUR_NORMS = {
    r"post_attention_layernorm\.": "post_attention_norm.",
    r"pre_feedforward_layernorm\.": "ffn_norm.",
    r"post_feedforward_layernorm\.": "post_ffn_norm.",
}
_GLM = {r"mlp\.(gate_up|down)_proj\.": r"feed_forward.\1_proj."}
_CODEGEN = {
    r"transformer\.wte\.": "tok_embeddings.",
    r"transformer\.ln_f\.": "norm.",
    r"transformer\.h\.(\d+)\.": r"layers.\1.",
    r"ln_1\.": "attention_norm.",
    r"attn\.([qkv])_proj\.": r"attention.w\1.",
    r"attn\.out_proj\.": "attention.wo.",
    r"mlp\.fc_(in|out)\.": r"feed_forward.fc_\1.",
    r"lm_head\.": "output.",
}
_PREFIXES = ("model.", "lm_head.", "transformer.", "language_model.")
_NO_WEIGHTS = re.compile(r"rotary_emb\.inv_freq$|attn\.(causal_mask|bias|masked_bias)$")
"""The names of tensors that a checkpoint can have and that are no weights."""
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_approx", "gelu_new": "gelu_approx"}


def language_model(
    *,
    checkpoint: str,
    context: int = ARGUMENTS["context"],
    ar_len: int = ARGUMENTS["ar_len"],
    new_tokens: int = ARGUMENTS["new_tokens"],
) -> nn.Module:
    """Return ExecuTorch's static llama with the weights of a checkpoint's folder, in eval mode, in float32.

    `checkpoint`: a folder with config.json and weights in safetensors. `context`: the number of positions. `ar_len`,
    `new_tokens`: only the methods' inputs and the samples use them.
    The module gets tokens, int32 [1, T], a mask, float32 [1, T, context], for two of the families a second mask for the
    layers with a sliding window, positions, int32 [1, T], the keys of every layer, [1, heads, size, context - T], and
    the values, [1, heads, context - T, size]. It returns scores, [1, T, vocabulary], and the new keys and values.
    The angles of the rotations are those of transformers. Raises RequestError if a weight is missing or has no place.
    """
    del ar_len, new_tokens
    config = _config(checkpoint)
    family = FAMILIES[config.architectures[0]]
    weights = _converted(_tensors(Path(checkpoint)), config, family)
    model = _empty(config, family, context, has_bias="layers.0.attention.wq.bias" in weights)
    _require_same(model, weights, checkpoint)
    model.load_state_dict(weights, strict=True, assign=True)
    del weights
    _set_rotations(model, config, context)
    if hasattr(config, "no_rope_layers"):
        for layer, rotates in zip(model.layers, config.no_rope_layers, strict=True):
            layer.attention.use_rope = bool(rotates)
    module = as_convolutions(model).eval().requires_grad_(False)
    module.weights_origin = "pretrained"
    module.vocabulary = _vocabulary(checkpoint, config.vocab_size)
    return module


def tokeniser(checkpoint: str) -> Any | None:
    """Return the tokeniser of a checkpoint's folder; None if the folder has none."""
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    if not any((Path(checkpoint) / name).is_file() for name in names):
        return None
    return _read(checkpoint, "AutoTokenizer", "tokeniser")


def _config(checkpoint: str) -> Any:
    """Return the configuration of a folder, or the part of it about text."""
    config = _read(checkpoint, "AutoConfig", "config.json")
    text = config.get_text_config(decoder=True)
    text.architectures = config.architectures
    return text


def _read(checkpoint: str, kind: str, what: str) -> Any:
    """Return what a class of transformers reads from a folder. Raises RequestError if it cannot."""
    transformers = import_transformers(checkpoint)
    try:
        return getattr(transformers, kind).from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise_shortage(error)
        problem = f"its {what} cannot be read: {printable(first_line(error))}"
        raise RequestError(problem, key="model", value=printable(f"llm:{checkpoint}")) from error


def _empty(config: Any, family: Family, context: int, *, has_bias: bool) -> Any:
    """Return the static llama of a configuration. Its weights have no memory."""
    llama, multi_scope, arguments, activations = static_llama_classes()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    scale = getattr(config, "query_pre_attn_scalar", None)
    name = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "gelu_new")
    if name not in _ACTIVATIONS:
        raise RequestError(f"the static llama of ExecuTorch has no activation {printable(name)}", key="model")
    sizes = arguments(
        dim=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=size,
        vocab_size=config.vocab_size,
        hidden_dim=getattr(config, "intermediate_size", None)
        or getattr(config, "n_inner", None)
        or 4 * config.hidden_size,
        norm_eps=getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon,
        act_fn=activations(_ACTIVATIONS[name]),
        attention_qkv_bias=has_bias,
        attention_multiplier=scale**-0.5 if scale else getattr(config, "attention_multiplier", None),
        residual_multiplier=getattr(config, "residual_multiplier", None),
        logits_scaling=getattr(config, "logits_scaling", None),
        use_qk_norm=family.normalises_heads,
        qk_norm_before_rope=True,
        use_hf_rope=True,
        partial_rotary_factor=_rotated_size(config, size) / size,
        post_attention_norm=family.norms == 4,
        post_ffn_norm=family.norms == 4,
        use_kv_cache=True,
        max_seq_len=context,
        max_context_len=context,
        **family.options,
    )
    if family.has_window:
        cap = getattr(config, "attn_logit_softcapping", None)
        sizes.layer_types, sizes.sliding_window = list(config.layer_types), config.sliding_window
        sizes.local_rope_theta = sizes.rope_freq_base  # the angles are replaced
        sizes.final_logit_softcapping = getattr(config, "final_logit_softcapping", None)
        # The static llama caps the scores before it divides them, and transformers afterwards.
        sizes.attn_logit_softcapping = None if cap is None else cap / (sizes.attention_multiplier or size**-0.5)
    settings: dict[str, Any] = {"kv_io_bit_width": 16, "enable_r3": False, "ar_len": 1}
    for key, value in settings.items():
        setattr(sizes, key, value)
    options: dict[str, Any] = {"output_new_cache_only": True, "output_cache": True, "use_i64_token": False}
    with torch.device("meta"):
        return (multi_scope if family.has_window else llama)(sizes, ar_len=1, **options)


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the value of every weight of a folder's files, which are mapped into memory."""
    word = printable(f"llm:{folder}")
    files = _files(folder)
    if not files:
        problem = "no weights in safetensors; model.save_pretrained(folder) of transformers writes them"
        raise RequestError(problem, key="model", value=word)
    for file in files:
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no mapping
                    if not _NO_WEIGHTS.search(name):
                        yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise_shortage(error)
            raise RequestError(f"{file.name} cannot be read: {printable(error)}", key="model", value=word) from error


def _files(folder: Path) -> list[Path]:
    """Return the files with the weights: those of the index, or model.safetensors, or all.

    A folder can have the same weights a second time, in the form of another library.
    """
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return [folder / name for name in sorted({*json.loads(index.read_text())["weight_map"].values()})]
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def _converted(tensors: Iterator[tuple[str, torch.Tensor]], config: Any, family: Family) -> Weights:
    """Return the weights under the static llama's names."""
    names = (_GLM if family.name == "glm" else {}) | _NAMES | (_FOUR_NORMS if family.norms == 4 else _NORMS)
    names = _CODEGEN if family.name == "codegen" else names
    weights: Weights = {}
    for name, whole in tensors:
        if not name.startswith(_PREFIXES):
            raise RequestError(f"{printable(name)} is no weight's name in transformers", key="model", value=family.name)
        for part, value in _parts(name.replace("language_model.", ""), whole, config, family):
            for pattern, new in names.items():
                part = re.sub(rf"(?:^|(?<=\.)){pattern}", new, part)
            weights[part] = _adapted(part, value.float(), config, family)
    if "output.weight" not in weights and "tok_embeddings.weight" in weights:
        weights["output.weight"] = weights["tok_embeddings.weight"]
    factor = (
        config.hidden_size**0.5 if family.name.startswith("gemma") else getattr(config, "embedding_multiplier", 1.0)
    )
    if factor != 1.0:
        weights["tok_embeddings.weight"] = weights["tok_embeddings.weight"] * factor
    return weights


def _parts(name: str, whole: torch.Tensor, config: Any, family: Family) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a tensor of several matrices has, and otherwise the tensor itself."""
    heads = config.num_attention_heads
    if "mlp.gate_up_proj" in name and family.name == "phi3":
        gate, up = whole.chunk(2)
        yield name.replace("gate_up", "gate"), gate
        yield name.replace("gate_up", "up"), up
    elif "self_attn.qkv_proj" in name:
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = config.num_key_value_heads * size
        for letter, value in zip("qkv", whole.split([heads * size, keys, keys]), strict=True):
            yield name.replace("qkv_proj", f"{letter}_proj"), value
    elif "attn.qkv_proj" in name:
        # As `mp_num` in the code of the model: 4 in transformers, and 8 in that of CodeGen 2, which its folder has.
        blocks = whole.view(8 if hasattr(config, "auto_map") else 4, 3, -1, whole.shape[1])
        for letter, number in (("q", 0), ("v", 1), ("k", 2)):
            yield name.replace("qkv_proj", f"{letter}_proj"), blocks[:, number].reshape(-1, whole.shape[1])
    else:
        yield name, whole


def _adapted(name: str, value: torch.Tensor, config: Any, family: Family) -> torch.Tensor:
    """Return a weight that computes the same in the static llama."""
    if family.name.startswith("gemma") and "norm" in name:
        return value + 1
    match = re.search(r"attention\.w([qk])\.", name)
    if match is None or not family.is_interleaved:
        return value
    heads = config.num_attention_heads
    if match[1] == "k":
        heads = getattr(config, "num_key_value_heads", None) or heads
    return _halved(value, heads, _rotated_size(config, len(value) // heads))


def _halved(value: torch.Tensor, heads: int, rotated: int) -> torch.Tensor:
    """Return a weight whose heads have the rotated rows as two halves, instead of as neighbouring pairs."""
    order = torch.cat([torch.arange(0, rotated, 2), torch.arange(1, rotated, 2)])
    rows = value.view(heads, len(value) // heads, *value.shape[1:])
    return torch.cat([rows[:, order], rows[:, rotated:]], 1).reshape(value.shape)


def _rotated_size(config: Any, size: int) -> int:
    """Return how many values of a head are rotated."""
    stated: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    return getattr(config, "rotary_dim", None) or int(size * stated.get("partial_rotary_factor", 1.0))


def _require_same(model: nn.Module, weights: Weights, checkpoint: str) -> None:
    """Raise RequestError if a weight is missing, has no place, or has another shape."""
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    problems = [f"the static llama of ExecuTorch has no place for {name}" for name in found.keys() - expected.keys()]
    problems += [f"there are no weights for {name}" for name in expected.keys() - found.keys()]
    problems += [
        f"{name} has the shape {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise RequestError(f"{printable(min(problems))}{more}", key="model", value=printable(f"llm:{checkpoint}"))


def _set_rotations(model: Any, config: Any, context: int) -> None:
    """Set the angles of the rotations to those of transformers, which has every kind that checkpoints have."""
    code = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    kind = next((value for name, value in vars(code).items() if name.endswith("RotaryEmbedding")), None)
    scopes = {"local_": "sliding_attention", "": "full_attention"} if hasattr(model, "local_freqs_cos") else {"": None}
    by_type = any(isinstance(value, Mapping) for value in (getattr(config, "rope_parameters", None) or {}).values())
    for prefix, layer_type in scopes.items():
        if kind is None:  # CodeGen has the plain angles, which are those of the static llama
            from executorch.examples.models.llama.rope import hf_precompute_freqs_cis

            size = config.hidden_size // config.num_attention_heads
            tables = [
                table[:, : table.shape[1] // 2]
                for table in hf_precompute_freqs_cis(size, context, 10000.0, _rotated_size(config, size) / size)
            ]
        else:
            more = {"layer_type": layer_type} if by_type else {}
            found = kind(config)(torch.zeros(1), torch.arange(context)[None], **more)
            tables = [table[0, :, : table.shape[-1] // 2].contiguous() for table in found]
        for name, table in zip(("freqs_cos", "freqs_sin"), tables, strict=True):
            model.register_buffer(f"{prefix}{name}", table, persistent=False)


def _vocabulary(checkpoint: str, size: int) -> list[str] | None:
    """Return the text of every token; None without a tokeniser."""
    words = tokeniser(checkpoint)
    return None if words is None else [words.decode([number]) for number in range(size)]
