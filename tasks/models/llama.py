"""A llama with a static key-value cache, in the form that ExecuTorch's `static_llama` has.

The caches are inputs, and the keys and values of the new tokens are outputs. So nothing in the model has a state: the
loop around the model writes the new columns into the caches.
"""

from dataclasses import dataclass

import torch
from torch import nn

HIDDEN = -100.0
"""The mask's value for a position that a token must not see. A larger number would take resolution from the scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaSizes:
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    rope_base: float = 10000.0

    @property
    def head(self) -> int:
        return self.width // self.heads


def causal_mask(tokens: int, context: int, start: int) -> torch.Tensor:
    """Return the mask, float32 [1, 1, tokens, context], for tokens from position `start` on.

    The first `context - tokens` columns are those of the cache, in which `start` positions are written. The other
    columns are the new tokens.
    """
    cached = torch.full((tokens, context - tokens), HIDDEN)
    cached[:, :start] = 0.0
    new = torch.full((tokens, tokens), HIDDEN).triu(1)
    return torch.cat([cached, new], 1)[None, None]


class Attention(nn.Module):
    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, sizes.kv_heads * sizes.head, bias=False)
        self.value = nn.Linear(sizes.width, sizes.kv_heads * sizes.head, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the result, the new tokens' keys, [batch, heads, size, tokens], and values."""
        batch, tokens, width = x.shape
        query = self._heads(self.query(x), self.sizes.heads)
        key = self._heads(self.key(x), self.sizes.kv_heads)
        value = self._heads(self.value(x), self.sizes.kv_heads)
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin).transpose(2, 3)
        all_keys = key if keys is None else torch.cat([keys, key], 3)
        all_values = value if values is None else torch.cat([values, value], 2)
        repeats = self.sizes.heads // self.sizes.kv_heads
        scores = query @ _repeated(all_keys, repeats) / self.sizes.head**0.5 + mask
        mixed = torch.softmax(scores, -1) @ _repeated(all_values, repeats)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width)), key, value

    def _heads(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, heads, self.sizes.head).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.attention = Attention(sizes)
        self.feed_norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.gate = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mixed, key, value = self.attention(self.attention_norm(x), mask, cos, sin, keys, values)
        x = x + mixed
        normed = self.feed_norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed)), key, value


class Llama(nn.Module):
    """Tokens, a mask and positions, with the caches of all keys and then of all values, become logits."""

    def __init__(self, sizes: LlamaSizes, context: int, tokens: int) -> None:
        """`tokens`: how many tokens a call reads; the caches have the other positions of the context."""
        super().__init__()
        self.sizes, self.cached = sizes, context - tokens
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.weights_origin = "random"
        self.vocabulary: list[str] | None = None
        """The texts of the tokens; None if they are not known."""
        rates = sizes.rope_base ** -(torch.arange(0, sizes.head, 2).float() / sizes.head)
        angles = torch.outer(torch.arange(context).float(), rates)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return `logits`, and the new tokens' keys `k_<layer>` and values `v_<layer>`."""
        x = self.embedding(tokens)
        cos, sin = self.get_buffer("cos")[position][0], self.get_buffer("sin")[position][0]
        new_keys: dict[str, torch.Tensor] = {}
        new_values: dict[str, torch.Tensor] = {}
        for number, layer in enumerate(self.layers):
            keys, values = (caches[number], caches[len(self.layers) + number]) if caches else (None, None)
            x, new_keys[f"k_{number}"], new_values[f"v_{number}"] = layer(x, mask, cos, sin, keys, values)
        return {"logits": self.head(self.norm(x)), **new_keys, **new_values}


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of every head against each other by the angles of the positions."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """Repeat every head of the keys or values for the query heads that share it."""
    batch, heads, rows, columns = x.shape
    return x[:, :, None].expand(batch, heads, times, rows, columns).reshape(batch, heads * times, rows, columns)
