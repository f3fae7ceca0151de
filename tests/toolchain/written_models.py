"""Models with values that HTP's kernels write on another grid: attention over many keys, and a masked mean."""

from __future__ import annotations

import torch
from torch import nn


class ManyKeys(nn.Module):
    """Attention that is nearly flat, as at the beginning of a training and in long contexts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 4
        return self.out(torch.softmax(scores, -1) @ self.value(x))


class MaskedMean(nn.Module):
    """The pooling of sentence encoders: the mean over the tokens that an integer mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.unsqueeze(-1).float()
        return (self.layer(x) * weights).sum(1) / weights.sum(1).clamp(min=1.0)


class FusedAttention(ManyKeys):
    """The same attention by the function that most models call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.out(found)


class TwoDelegates(nn.Module):
    """A cast in another delegate than the embedding, which narrows the integers: the activation is on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.before, self.after = nn.Embedding(100, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.after(torch.relu(self.before(self.embedding(tokens))))
        return hidden * (tokens.float() / 8).unsqueeze(-1)


MODELS = {kind.__name__: kind for kind in (ManyKeys, FusedAttention, MaskedMean, TwoDelegates)}


def samples(kind: str) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    if kind == "TwoDelegates":
        return [{"tokens": torch.randint(0, 8, (1, 12), generator=generator)} for _ in range(4)]
    if kind != "MaskedMean":
        return [{"x": torch.randn(1, 260, 16, generator=generator)} for _ in range(4)]
    masks = [(torch.arange(8)[None] < kept).long() for kept in (3, 4, 6, 8)]
    return [{"x": torch.randn(1, 8, 16, generator=generator), "mask": mask} for mask in masks]
