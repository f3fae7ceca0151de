"""The sequences of a language model: texts that a prefill reads, and tokens that decode steps read or choose."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qnnsweep.conf.errors import printable
from qnnsweep.conf.language_models import ARGUMENTS, Decoder, read_decoder
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models import sentences
from qnnsweep.tasks.models.language_model import tokeniser
from qnnsweep.tasks.models.sample_files import divided, stored_samples
from qnnsweep.tasks.models.static_llama import HIDDEN

SHIPPED = {"evaluation": sentences.EVALUATION, "calibration": sentences.CALIBRATION}
DECODED = 8
"""The most tokens of a calibration text that decode steps read, and not a prefill."""
_RANDOM_TOKENS = 24
_NAME = 60
"""The most characters of a text that a sequence's name has."""


def sequences(
    count: int,
    *,
    checkpoint: str,
    split: str,
    texts: str | None = None,
    counts: Mapping[str, int] | None = None,
    context: int = ARGUMENTS["context"],
    ar_len: int = ARGUMENTS["ar_len"],
    new_tokens: int = ARGUMENTS["new_tokens"],
) -> Iterator[dict[str, Any]]:
    """Yield at most `count` sequences of a split (`calibration`, `evaluation`), one or more per text.

    `texts`: a file with a text per line; None for sentences that ship, or for random tokens if the checkpoint has no
    tokeniser. `counts`: the number of texts per split, if the file has those of both. A text that is too long for the
    context is several sequences.

    A sequence of the evaluation is a prefill of the text, `ar_len` tokens at a time, and then `new_tokens` steps that
    read the token of the step before. A sequence of the calibration reads the text alone, its last tokens one by one.
    The label of a step is the next token of the text. Raises RequestError for a file that is no text, and for texts
    without a tokeniser.
    """
    decoder = read_decoder(Path(checkpoint), f"llm:{checkpoint}")
    steps = _Steps(context, ar_len, decoder.sliding_window or context if decoder.family.has_window else None)
    longest = context - max(ar_len, new_tokens)
    origin, read = _texts(decoder, checkpoint, split, texts, counts)
    found = 0
    for name, tokens in read:
        parts = [tokens[start : start + longest] for start in range(0, len(tokens), longest)]
        for number, part in enumerate(parts):
            if found == count:
                return
            found += 1
            one_by_one = min(DECODED, len(part) // 2) if split == "calibration" else 0
            generated = 0 if split == "calibration" else new_tokens
            yield {
                "name": name if number == 0 else f"{name} (part {number + 1})",
                "origin": origin,
                "steps": [*steps.reading(part, one_by_one), *steps.choosing(len(part), generated)],
            }


class _Steps:
    """The steps of a sequence: dicts with the keys `method`, `inputs` and `keep`."""

    def __init__(self, context: int, ar_len: int, window: int | None) -> None:
        self.context, self.ar_len, self.window = context, ar_len, window

    def reading(self, tokens: Sequence[int], one_by_one: int) -> Iterator[dict[str, Any]]:
        """Yield the steps that read tokens: a prefill for each `ar_len`, and a decode for each of the last."""
        prefilled = len(tokens) - one_by_one
        for start in range(0, prefilled, self.ar_len):
            part = tokens[start : min(start + self.ar_len, prefilled)]
            yield self._step("prefill", self.ar_len, start, part)
        for start in range(prefilled, len(tokens)):
            yield self._step("decode", 1, start, tokens[start : start + 1])

    def choosing(self, start: int, steps: int) -> Iterator[dict[str, Any]]:
        """Yield decode steps that read the token of the step before."""
        for position in range(start, start + steps):
            yield {"method": "decode", "inputs": self._where(1, position)}

    def _step(self, method: str, size: int, start: int, part: Sequence[int]) -> dict[str, Any]:
        padded = torch.tensor([[*part, *[0] * (size - len(part))]], dtype=torch.int32)
        step: dict[str, Any] = {"method": method, "inputs": {"tokens": padded, **self._where(size, start)}}
        if len(part) < size:
            step["keep"] = len(part)
        return step

    def _where(self, size: int, start: int) -> dict[str, torch.Tensor]:
        """Return the inputs that say where a step's tokens are. The cache has those before `start`, in order."""
        positions = torch.arange(start, start + size)
        cached = torch.arange(self.context - size)
        seen = torch.cat([torch.where(cached < start, cached, self.context), positions])[None]
        distance = positions[:, None] - seen
        inputs = {"mask": _mask(distance >= 0)}
        if self.window is not None:
            inputs["window_mask"] = _mask((distance >= 0) & (distance < self.window))
        return {**inputs, "position": positions.to(torch.int32)[None]}


def _mask(seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, 0.0, HIDDEN)[None]


def _texts(
    decoder: Decoder, checkpoint: str, split: str, place: str | None, counts: Mapping[str, int] | None
) -> tuple[str, list[tuple[str, list[int]]]]:
    """Return where the texts of a split are from, and the name and the tokens of each."""
    words = tokeniser(checkpoint)
    if words is None and place is not None:
        problem = f"{printable(checkpoint)} has no tokeniser (tokenizer.json), so texts have no tokens"
        raise RequestError(problem, key="samples", value=printable(place))
    if words is None:
        chance = random.Random(split)  # noqa: S311 - no secret
        drawn = [[chance.randrange(decoder.vocabulary) for _ in range(_RANDOM_TOKENS)] for _ in SHIPPED[split]]
        return "random tokens", [(f"random {number}", tokens) for number, tokens in enumerate(drawn)]
    if place is None:
        origin, lines = "sentences that ship", list(SHIPPED[split])
    else:
        stored = stored_samples(place)
        if stored.kind != "text":
            raise RequestError("a language model reads a text, .txt", key="samples", value=printable(place))
        chosen = range(len(stored.samples)) if counts is None else divided(len(stored.samples), counts)[split]
        origin, lines = stored.words, [str(stored.samples[number].read()) for number in chosen]
    read = [(line[:_NAME], [*words(line)["input_ids"]]) for line in lines]
    return f"{origin}, tokenised", [(name, tokens) for name, tokens in read if len(tokens) > 1]
