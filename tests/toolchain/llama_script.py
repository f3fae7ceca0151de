"""ExecuTorch's llama script, with a decoder of one layer. Runs in a worker: the script's imports are heavy.

The script imports packages that it needs for downloads and evaluations only. They are not installed here.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from qnnsweep.tasks.models.torchvision_import import torchvision

_NOT_NEEDED = ("torchtune", "datasets", "lm_eval", "pytorch_tokenizers", "sentencepiece", "tiktoken")
PARAMETERS = {"dim": 32, "n_heads": 2, "n_kv_heads": 2, "n_layers": 1, "vocab_size": 16, "multiple_of": 16}


class _StandIn(ModuleType):
    """A package in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in _NOT_NEEDED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Define nothing."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A quantized weight of the decoder that the script has quantized."""

    module: str
    scales: str
    """`per channel` or `per block`."""
    steps: int


def quantized_weights(recipe: str) -> list[QuantizedWeight]:
    """Quantize a decoder as the script does, with the class that a recipe's file gives it. Return its weights."""
    sys.meta_path.append(_Finder())  # type: ignore[arg-type]
    torchvision()  # before the script imports it: see `qnnsweep.tasks.models.torchvision_import`
    from executorch.examples.qualcomm.oss_scripts.llama import LlamaStories260K
    from executorch.examples.qualcomm.oss_scripts.llama.decoder_constants import TEXT_DECODER
    from executorch.examples.qualcomm.oss_scripts.llama.wrappers.base_component import Mode, Request
    from executorch.examples.qualcomm.oss_scripts.llama.wrappers.llm_wrappers import TextDecoder

    written: dict[str, Any] = {}
    exec(recipe, written)  # the file as a user would import it
    config = type("Config", (type(LlamaStories260K),), {"quant_recipe": written["llama_recipe"]()})
    Path("params.json").write_text(json.dumps(PARAMETERS))
    arguments = Namespace(
        decoder_model="stories260k", params="params.json", checkpoint="weights.pt", model_mode="hybrid", qat=False,
        max_seq_len=8, max_context_len=8, prefill_ar_len=4, batch_size=1, embedding_quantize=None, dtype_override=None,
        quant_recipe_suggestion=False, verbose=False,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.save(_weights(), "weights.pt")
    decoder = TextDecoder(arguments, config(), Mode.DECODE)
    decoder.quantize(Request("quantize", {TEXT_DECODER: Request.Data()}))
    return sorted((_weight(node) for node in decoder.decoder.graph.nodes if _is_weight(node)), key=str)


def _weights() -> dict[str, torch.Tensor]:
    width, hidden, vocabulary = PARAMETERS["dim"], 96, PARAMETERS["vocab_size"]
    attention = {f"layers.0.attention.w{name}.weight": (width, width) for name in "qkvo"}
    shapes: dict[str, tuple[int, ...]] = attention | {
        "layers.0.feed_forward.w1.weight": (hidden, width),
        "layers.0.feed_forward.w2.weight": (width, hidden),
        "layers.0.feed_forward.w3.weight": (hidden, width),
        "layers.0.attention_norm.weight": (width,),
        "layers.0.ffn_norm.weight": (width,),
        "norm.weight": (width,),
        "output.weight": (vocabulary, width),
        "tok_embeddings.weight": (vocabulary, width),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def _is_weight(node: torch.fx.Node) -> bool:
    rounded = any(kind in str(node.target) for kind in (".dequantize_per_channel", ".dequantize_affine"))
    return rounded and any("conv2d" in str(user.target) and user.args[1] is node for user in node.users)


def _weight(node: torch.fx.Node) -> QuantizedWeight:
    (convolution,) = node.users
    *_, (path, _) = convolution.meta["nn_module_stack"].values()
    per_block = ".dequantize_affine" in str(node.target)
    least, most = node.args[5:7] if per_block else node.args[4:6]
    scales = "per block" if per_block else "per channel"
    return QuantizedWeight(path.rpartition(".")[2], scales, int(most) - int(least))  # type: ignore[call-overload]
