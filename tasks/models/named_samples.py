"""The samples of models by name, and of all models whose samples the key `samples` names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from qnnsweep.conf.errors import printable
from qnnsweep.conf.places import PHOTOGRAPHS, is_function
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models.hugging_face import of_hf
from qnnsweep.tasks.models.photographs import pictures
from qnnsweep.tasks.models.preparation import (
    Inputs,
    Preparation,
    of_inputs,
    of_program,
    of_timm,
    of_torchvision,
    read_program,
)
from qnnsweep.tasks.models.sample_files import StoredSample, StoredSamples, called_samples, divided, stored_samples
from qnnsweep.tasks.models.user_function import user_function

SEEDS = {"evaluation": 0, "calibration": 1}
"""The seeds of random samples."""
_PREPARATIONS: Mapping[str, Callable[..., Preparation]] = {
    "timm": of_timm,
    "torchvision": of_torchvision,
    "hf": of_hf,
    "program": lambda file: of_program(read_program(file)),
}


def samples(
    count: int,
    *,
    split: str,
    samples: str | None = None,
    counts: Mapping[str, int] | None = None,
    kind: str | None = None,
    model: Mapping[str, Any] | None = None,
    inputs: Sequence[tuple[str, Sequence[int], str]] = (),
) -> Iterator[dict[str, Any]]:
    """Yield at most `count` samples of a split, with the key `origin`, which says where they are from.

    If both splits are taken from one place, and `count` is more than the samples to evaluate, samples follow that are
    of neither split: those of a repair's certificate.

    samples: the place of the samples; None for random numbers.
    counts: the number of samples per split, if both are taken from the place; None if it is for one split.
    kind, model: where the model is from (`timm`, `torchvision`, `hf`, `program`), and the arguments of its factory.
    inputs: the name, the shape and the dtype of every input that is configured.

    Raises RequestError if the place has no samples, or none that the model can take.
    """

    def preparation() -> Preparation:
        return _PREPARATIONS[kind](**(model or {})) if kind else of_inputs([spec[1:] for spec in inputs])

    named = [name for name, *_ in inputs]
    if samples is None:
        yield from _random(count, split, preparation(), named)
        return
    unseen = max(0, count - counts["evaluation"]) if counts is not None and split == "evaluation" else 0
    stored = _stored(samples, counts or {split: count}, split, unseen)
    chosen, of_split = stored.samples, ""
    if counts is not None and not stored.is_split:
        numbers = divided(len(stored.samples), counts, unseen)
        chosen = [*(stored.samples[number] for number in (*numbers[split], *numbers["unseen"])), *stored.unseen]
        shared = numbers["evaluation"] == numbers["calibration"]
        of_split = f": {len(numbers['evaluation'])} of {len(stored.samples)} evaluated, "
        of_split += "the same one calibrates" if shared else f"{len(numbers['calibration'])} others calibrate"
    prepare, words = _prepared(stored, preparation, samples)
    origin = f"{stored.words}{words}{of_split}"
    for sample in chosen[:count]:
        values = _named(prepare(sample.read()), named)
        yield {"inputs": values, "name": sample.name, "label": sample.label, "origin": origin}


def _random(count: int, split: str, preparation: Preparation, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    if preparation.random is None:
        raise RequestError(
            "the inputs of this model are not known; give samples=FILE (.npy, .npz, .safetensors) or "
            "samples=FILE.py:FUNCTION",
            key="samples",
        )
    seed = SEEDS[split]
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        values = _named(preparation.random(generator), names)
        yield {"inputs": values, "name": f"random {number}", "origin": f"random numbers of seed {seed}"}


def _stored(place: str, counts: Mapping[str, int], split: str, unseen: int) -> StoredSamples:
    if place == PHOTOGRAPHS:
        shown = [StoredSample(name=name, read=lambda picture=picture: picture) for name, picture in pictures(split)]
        return StoredSamples(words="photographs that ship", kind="picture", samples=shown, is_split=True)
    if is_function(place):
        return called_samples(user_function(place), place, counts, split, unseen)
    return stored_samples(place)


def _prepared(
    stored: StoredSamples, preparation_of: Callable[[], Preparation], place: str
) -> tuple[Callable[[Any], Inputs], str]:
    """Return the function that makes inputs of what is stored, and words that say what it does."""
    if stored.kind == "inputs":
        return lambda inputs: inputs, ""
    preparation = preparation_of()
    if stored.kind == "picture":
        if preparation.picture is None:
            raise RequestError("the model does not take one image as its input", key="samples", value=printable(place))
        return preparation.picture, f", {preparation.picture_words}"
    if preparation.text is None:
        problem = f"the model cannot take lines of text: {preparation.no_text}"
        raise RequestError(problem, key="samples", value=printable(place))
    return preparation.text, ", tokenised"


def _named(values: Inputs, names: Sequence[str]) -> Any:
    """Return inputs by name, if the configuration names them; as they are otherwise."""
    if not names or isinstance(values, Mapping):
        return values
    return dict(zip(names, values if isinstance(values, tuple | list) else (values,), strict=False))
