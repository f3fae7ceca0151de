"""Whisper with a static cache: an encoder whose outputs are the keys and values of the decoder's cross attention.

The decoder reads one token per call. Its self-attention cache is that of `tasks.models.llama`: the caches are inputs,
and the keys and values of the new token are outputs. The keys and values of the cross attention are inputs too, and do
not change after the encoder has written them.
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class WhisperSizes:
    vocabulary: int
    width: int
    layers: int
    heads: int
    hidden: int
    mels: int
    frames: int
    """The number of positions that the encoder returns: half of the columns of the spectrogram."""
    context: int
    """The number of positions of the decoder."""


class _Attention(nn.Module):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.heads, self.scale = sizes.heads, (sizes.width // sizes.heads) ** -0.5
        self.query = nn.Linear(sizes.width, sizes.width)
        self.key = nn.Linear(sizes.width, sizes.width, bias=False)
        self.value = nn.Linear(sizes.width, sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def keys_and_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys, [batch, heads, size, positions], and the values, [batch, heads, positions, size]."""
        return self._heads(self.key(x)).transpose(2, 3), self._heads(self.value(x))

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = (self._heads(self.query(x)) * self.scale) @ keys
        mixed = torch.softmax(scores if mask is None else scores + mask, -1) @ values
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        batch, positions, width = x.shape
        return x.view(batch, positions, self.heads, width // self.heads).transpose(1, 2)


class _Feed(nn.Sequential):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__(nn.Linear(sizes.width, sizes.hidden), nn.GELU(), nn.Linear(sizes.hidden, sizes.width))


class _EncoderLayer(nn.Module):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(sizes.width), _Attention(sizes)
        self.feed_norm, self.feed = nn.LayerNorm(sizes.width), _Feed(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, *self.attention.keys_and_values(normed))
        return x + self.feed(self.feed_norm(x))


class _DecoderLayer(nn.Module):
    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(sizes.width), _Attention(sizes)
        self.cross_norm, self.cross = nn.LayerNorm(sizes.width), _Attention(sizes)
        self.feed_norm, self.feed = nn.LayerNorm(sizes.width), _Feed(sizes)

    def cross_keys_and_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and the values of the cross attention for what the encoder returns."""
        return self.cross.keys_and_values(x)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        cached: tuple[torch.Tensor, torch.Tensor],
        encoded: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the result, and the key and the value of the new token."""
        normed = self.attention_norm(x)
        key, value = self.attention.keys_and_values(normed)
        x = x + self.attention(normed, torch.cat([cached[0], key], 3), torch.cat([cached[1], value], 2), mask)
        x = x + self.cross(self.cross_norm(x), *encoded)
        return x + self.feed(self.feed_norm(x)), key, value


class Whisper(nn.Module):
    """The methods `encode` and `decode`."""

    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.conv1 = nn.Conv1d(sizes.mels, sizes.width, 3, padding=1)
        self.conv2 = nn.Conv1d(sizes.width, sizes.width, 3, stride=2, padding=1)
        self.frame_positions = nn.Parameter(torch.zeros(sizes.frames, sizes.width))
        self.encoder = nn.ModuleList(_EncoderLayer(sizes) for _ in range(sizes.layers))
        self.encoder_norm = nn.LayerNorm(sizes.width)
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.decoder = nn.ModuleList(_DecoderLayer(sizes) for _ in range(sizes.layers))
        self.decoder_norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.weights_origin = "random"
        self.vocabulary: list[str] | None = None
        """The texts of the tokens; None if they are not known."""

    def encode(self, mel: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the keys `cross_k_<layer>` and the values `cross_v_<layer>` of a spectrogram, [1, mels, columns]."""
        x = nn.functional.gelu(self.conv1(mel))
        x = nn.functional.gelu(self.conv2(x)).transpose(1, 2) + self.frame_positions
        for layer in self.encoder:
            x = layer(x)
        x = self.encoder_norm(x)
        pairs = [layer.cross_keys_and_values(x) for layer in self.decoder if isinstance(layer, _DecoderLayer)]
        keys = {f"cross_k_{number}": key for number, (key, _) in enumerate(pairs)}
        return keys | {f"cross_v_{number}": value for number, (_, value) in enumerate(pairs)}

    def decode(
        self, tokens: torch.Tensor, mask: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return `logits`, and the new token's keys `k_<layer>` and values `v_<layer>`.

        `states`: the cached keys of all layers, the cached values, and the keys and the values of the cross attention.
        """
        x = self.embedding(tokens) + self.positions(position)
        layers = len(self.decoder)
        new_keys: dict[str, torch.Tensor] = {}
        new_values: dict[str, torch.Tensor] = {}
        for number, layer in enumerate(self.decoder):
            keys, values, cross_keys, cross_values = states[number::layers]
            x, new_keys[f"k_{number}"], new_values[f"v_{number}"] = layer(
                x, mask, (keys, values), (cross_keys, cross_values)
            )
        return {"logits": self.head(self.decoder_norm(x)), **new_keys, **new_values}
