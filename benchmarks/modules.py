"""What becomes of modules of torchvision, timm and transformers, each through the one call with two arguments.

    python benchmarks/modules.py [--scheme 8a8w] [--only NAME ...] [--json]

Each module has random weights and four random samples, and is small, so that the whole takes minutes. The table says
per module whether it was exported, compiled and explained, and the sentence; or the line with which it was refused. A
module counts as answered if it was compared, or if the refusal names a remedy or a line of the model's code.
"""

import argparse
import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import qnnsweep

Samples = list[Any]
Made = tuple[nn.Module, Samples]
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_TEXT = {**_SMALL, "vocab_size": 100}
_VISION = {**_SMALL, "image_size": 32, "patch_size": 8}
_SEQ2SEQ = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 100,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def _ids(length: int = 16) -> torch.Tensor:
    return torch.randint(3, 100, (1, length))


def _text() -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(), "attention_mask": torch.ones(1, 16, dtype=torch.long)}


def _both() -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(8)}


def _image(size: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def _larger() -> dict[str, torch.Tensor]:
    return _image(64)


def _sound() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 16, 60), "decoder_input_ids": _ids(6)}


def _hf(model: str, config: str, sample: Callable[[], Any], **keys: Any) -> Callable[[], Made]:
    def made() -> Made:
        import transformers

        module = getattr(transformers, model)(getattr(transformers, config)(**keys))
        return module, [sample() for _ in range(4)]

    return made


def _timm(name: str, **keys: Any) -> Callable[[], Made]:
    def made() -> Made:
        import timm

        module = timm.create_model(name, pretrained=False, **keys)
        return module, [torch.randn(1, 3, 64, 64) for _ in range(4)]

    return made


def _vision(name: str, *shape: int, **keys: Any) -> Callable[[], Made]:
    def made() -> Made:
        import torchvision

        module = torchvision.models.get_model(name, weights=None, **keys)
        _normalise(getattr(module, "backbone", module), torch.randn(8, 3, *(shape or (64, 64))))
        return module, [torch.randn(1, 3, *(shape or (64, 64))) for _ in range(4)]

    return made


def _normalise(module: nn.Module, batch: torch.Tensor) -> None:
    """Give the batch norms the statistics of a batch. With those of a new module, values of deep networks vanish."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.momentum = None
    with torch.no_grad():
        module.train()(batch)


class _Detector(nn.Module):
    """A detector of torchvision without its post-processing, which is the remedy for the whole one."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.backbone, self.head = whole.backbone, whole.head

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.head([*self.backbone(x).values()])


def _detector(made: Callable[[], Made]) -> Callable[[], Made]:
    def part() -> Made:
        whole, samples = made()
        return _Detector(whole), samples

    return part


_SSDLITE = _vision("ssdlite320_mobilenet_v3_large", weights_backbone=None)
_CLIP = {"text_config": {**_TEXT, "eos_token_id": 99}, "vision_config": _VISION, "projection_dim": 16}
_STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
_WAVE = {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}

MODULES: Mapping[str, Callable[[], Made]] = {
    "hf:albert": _hf("AlbertModel", "AlbertConfig", _text, **_TEXT, embedding_size=16),
    "hf:bart": _hf("BartModel", "BartConfig", _both, **_SEQ2SEQ),
    "hf:bert": _hf("BertModel", "BertConfig", _text, **_TEXT),
    "hf:clip": _hf("CLIPModel", "CLIPConfig", lambda: {**_text(), **_image()}, **_CLIP),
    "hf:convnext": _hf("ConvNextModel", "ConvNextConfig", _larger, **_STAGES),
    "hf:deberta-v2": _hf("DebertaV2Model", "DebertaV2Config", _text, **_TEXT, relative_attention=False),
    "hf:dinov2": _hf("Dinov2Model", "Dinov2Config", _image, **_VISION),
    "hf:distilbert": _hf(
        *("DistilBertForSequenceClassification", "DistilBertConfig", _text),
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        vocab_size=100,
    ),
    "hf:electra": _hf("ElectraForTokenClassification", "ElectraConfig", _text, **_TEXT, embedding_size=16),
    "hf:gemma": _hf("GemmaForCausalLM", "GemmaConfig", _text, **_TEXT, num_key_value_heads=1, head_dim=16),
    "hf:gpt2": _hf("GPT2LMHeadModel", "GPT2Config", _text, n_embd=32, n_layer=2, n_head=2, vocab_size=100),
    "hf:gpt_neox": _hf("GPTNeoXForCausalLM", "GPTNeoXConfig", _text, **_TEXT),
    "hf:llama": _hf("LlamaForCausalLM", "LlamaConfig", _text, **_TEXT, num_key_value_heads=2),
    "hf:mamba": _hf(
        *("MambaForCausalLM", "MambaConfig", lambda: {"input_ids": _ids()}),
        hidden_size=32,
        num_hidden_layers=2,
        vocab_size=100,
        state_size=4,
    ),
    "hf:mobilevit": _hf(
        *("MobileViTModel", "MobileViTConfig", _larger),
        image_size=64,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32],
    ),
    "hf:opt": _hf(
        *("OPTForCausalLM", "OPTConfig", _text),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        vocab_size=100,
        word_embed_proj_dim=32,
    ),
    "hf:phi": _hf("PhiForCausalLM", "PhiConfig", _text, **_TEXT),
    "hf:qwen2": _hf("Qwen2ForCausalLM", "Qwen2Config", _text, **_TEXT, num_key_value_heads=1),
    "hf:roberta": _hf("RobertaForTokenClassification", "RobertaConfig", _text, **_TEXT),
    "hf:segformer": _hf(
        *("SegformerForSemanticSegmentation", "SegformerConfig", _larger), **_STAGES, decoder_hidden_size=16
    ),
    "hf:swin": _hf(
        *("SwinModel", "SwinConfig", _image),
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=4,
    ),
    "hf:t5": _hf(
        *("T5ForConditionalGeneration", "T5Config", _both),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        vocab_size=100,
    ),
    "hf:vit": _hf("ViTModel", "ViTConfig", _image, **_VISION),
    "hf:wav2vec2": _hf(
        "Wav2Vec2Model", "Wav2Vec2Config", lambda: torch.randn(1, 2000), **_SMALL, **_WAVE, vocab_size=30
    ),
    "hf:whisper": _hf(
        *("WhisperModel", "WhisperConfig", _sound), **_SEQ2SEQ, **_TOKENS, num_mel_bins=16, max_source_positions=30
    ),
    "hf:yolos": _hf(
        "YolosModel", "YolosConfig", _image, **_SMALL, image_size=[32, 32], patch_size=8, num_detection_tokens=4
    ),
    **{
        f"timm:test_{name}": _timm(f"test_{name}")
        for name in ("byobnet", "convnext", "efficientnet", "mambaout", "nfnet", "resnet")
    },
    "timm:test_vit": _timm("test_vit", img_size=64),
    "torchvision:densenet121": _vision("densenet121", 32, 32),
    "torchvision:efficientnet_b0": _vision("efficientnet_b0"),
    "torchvision:lraspp": _vision("lraspp_mobilenet_v3_large", weights_backbone=None),
    "torchvision:mnasnet0_5": _vision("mnasnet0_5"),
    "torchvision:mobilenet_v2": _vision("mobilenet_v2"),
    "torchvision:r3d_18": _vision("r3d_18", 4, 32, 32),
    "torchvision:regnet_y_400mf": _vision("regnet_y_400mf"),
    "torchvision:resnet18": _vision("resnet18"),
    "torchvision:shufflenet_v2": _vision("shufflenet_v2_x0_5"),
    "torchvision:squeezenet1_1": _vision("squeezenet1_1"),
    "torchvision:ssdlite": _SSDLITE,
    "torchvision:ssdlite_head": _detector(_SSDLITE),
}


def tried(name: str, scheme: str, folder: str) -> dict[str, Any]:
    """Return the row of a module."""
    torch.manual_seed(0)
    started = time.monotonic()
    module, samples = MODULES[name]()
    try:
        run = qnnsweep.debug(module, samples, scheme=scheme, artifacts=folder, progress=False)
    except qnnsweep.QnnsweepError as error:
        outcome, snr_db, text, compared = "refused", None, str(error), False
    else:
        cell = run.cells.iloc[0]
        compared, snr_db = cell["final_difference"] is not None, run.worst_snr_db
        outcome, text = cell["outcome"], run.sentence if compared else str(cell["reason"] or cell["error"])
    answered = compared or bool(re.search(r"\.py:\d+|remedy|instead|set |use |run ", text))
    return {
        "module": name, "scheme": scheme, "outcome": outcome, "snr_db": snr_db,
        "compared": compared, "answered": answered,
        "seconds": time.monotonic() - started, "text": " ".join(text.split()),
    }  # fmt: skip


def rows(names: list[str], scheme: str) -> Iterator[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        for name in names:
            yield tried(name, scheme, str(Path(folder, "artifacts")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", default="8a8w")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    found: list[dict[str, Any]] = []
    for row in rows(asked.only, asked.scheme):
        found.append(row)
        snr = "" if row["snr_db"] is None else f"{row['snr_db']:.1f} dB"
        if not asked.json:
            print(
                f"{row['module']:28} {row['seconds']:5.0f} s  {row['outcome']:16} {snr:>9}  {row['text']}", flush=True
            )
    counts = {"modules": len(found), "answered": sum(row["answered"] for row in found)}
    counts["compared"] = sum(row["compared"] for row in found)
    print(json.dumps({**counts, "rows": found}) if asked.json else counts)


if __name__ == "__main__":
    main()
