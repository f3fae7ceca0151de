"""Folders of checkpoints with random weights and a tokeniser: one per family of decoders that the static llama has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from qnnsweep.tasks.models.hugging_face import import_transformers
from qnnsweep.tasks.models.sentences import CALIBRATION

VOCABULARY = 128
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 9.0],
    "partial_rotary_factor": 0.75,
}
_CODEGEN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "n_ctx": 512,
    "rotary_dim": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": _LLAMA3}),
    "smollm2": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "tie_word_embeddings": True,
            "hidden_size": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 16,
        },
    ),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {"num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"query_pre_attn_scalar": 4, "attn_logit_softcapping": 2.0, "sliding_window": 8},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"query_pre_attn_scalar": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"rope_parameters": _LONG, "original_max_position_embeddings": 256}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {"num_hidden_layers": 4}),
    "granite": (
        "GraniteConfig",
        "GraniteForCausalLM",
        {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3},
    ),
    "glm": ("GlmConfig", "GlmForCausalLM", {"attention_bias": False}),
    "codegen": ("CodeGenConfig", "CodeGenForCausalLM", {}),
}
"""Per family, its configuration and its model in transformers, and what distinguishes it from the common sizes."""


def write_checkpoint(folder: Path, family: str, *, with_tokeniser: bool = True, **settings: Any) -> Any:
    """Write a folder as transformers does, and return the model of transformers, in eval mode."""
    transformers = import_transformers(family)
    configuration, kind, special = FAMILIES[family]
    sizes = _CODEGEN if family == "codegen" else _SIZES
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, configuration)(**{**sizes, **special, **settings}))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.normal_(0, 1.0 if "embed" in name or "wte" in name else 0.2)
            else:
                value.add_(0.2 * torch.randn_like(value))
    model.eval().save_pretrained(folder)
    if with_tokeniser:
        _tokeniser(transformers).save_pretrained(folder)
    return model


def _tokeniser(transformers: Any) -> Any:
    """Return a tokeniser of pairs of bytes that is trained with the sentences that ship."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<pad>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(_texts(), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def _texts() -> Iterator[str]:
    yield from CALIBRATION
