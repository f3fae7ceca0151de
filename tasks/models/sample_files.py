"""Samples in files: pictures, arrays, lines of text, and what a function yields."""

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from safetensors import safe_open

from qnnsweep.conf.errors import printable
from qnnsweep.tasks.errors import RequestError, raise_shortage

PICTURES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))
_FORMS = "a folder of images, .npy, .npz, .safetensors, .txt, or FILE.py:FUNCTION"
_LABELS = ("label", "labels")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSample:
    """A sample that is read when it is needed."""

    name: str
    read: Callable[[], Any]
    """Returns a picture, a text or inputs."""
    label: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSamples:
    """The samples of a file or folder."""

    words: str
    """What they are, for the user."""
    kind: str
    """`picture`, `text` or `inputs`."""
    samples: Sequence[StoredSample]
    is_split: bool = False
    """Whether all of them are for the split that was asked for."""
    unseen: Sequence[StoredSample] = ()
    """What a function yields after the samples of both splits."""


def stored_samples(place: str) -> StoredSamples:
    """Return the samples at a path. Raises RequestError if there are none, or if the path is of no known kind."""
    path = Path(place)
    ending = path.suffix.lower()
    if path.is_dir():
        found = StoredSamples(words=f"images of {path.name}", kind="picture", samples=_pictures(path))
    elif ending in PICTURES:
        found = StoredSamples(words=path.name, kind="picture", samples=[_picture(path, None, path.name)])
    elif ending in (".npy", ".npz", ".safetensors"):
        read = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}[ending]
        try:
            samples = read(path)
        except Exception as error:  # a damaged file makes the libraries raise anything
            raise_shortage(error)
            # NumPy's own advice is to run what is in the file.
            is_pickled = any(words in str(error) for words in ("allow_pickle", "Python objects"))
            problem = "no arrays of numbers in it" if is_pickled else printable(error)
            raise _wrong(place, f"not a readable {ending} file: {problem}") from error
        found = StoredSamples(words=path.name, kind="inputs", samples=samples)
    elif ending == ".txt":
        found = StoredSamples(words=f"lines of {path.name}", kind="text", samples=_lines(path))
    elif path.exists():
        raise _wrong(place, f"a file of an unknown kind; it must be {_FORMS}")
    else:
        raise _wrong(place, "no such file or folder")
    if not found.samples:
        what = f"no image in it; the endings of images are {', '.join(sorted(PICTURES))}" if path.is_dir() else "empty"
        raise _wrong(place, what)
    return found


def called_samples(
    function: Callable[..., Any], name: str, counts: Mapping[str, int], split: str, unseen: int
) -> StoredSamples:
    """Return the samples that a function of the user yields, of which not more than needed are taken.

    It is called with the number of samples if it has a parameter without a default, and with `split` if it has such a
    parameter: then it yields the samples of this split. It yields samples with the key `inputs`, or inputs.
    `unseen`: how many more are taken. Raises RequestError if the function fails.
    """
    parameters = inspect.signature(function).parameters
    by_split = "split" in parameters
    divided_count = counts[split] + unseen if by_split else sum(counts.values())
    count = divided_count if by_split else divided_count + unseen
    named = {"split": split} if by_split else {}
    positional = [parameter for key, parameter in parameters.items() if key != "split" and _is_positional(parameter)]
    takes_count = "count" in parameters or any(parameter.default is inspect.Parameter.empty for parameter in positional)
    try:
        items = list(itertools.islice(function(*((count,) if takes_count else ()), **named), count))
    except Exception as error:  # a user's own code may raise anything
        raise_shortage(error)
        raise _wrong(name, f"{type(error).__name__}: {printable(error)}") from error
    if not items:
        raise _wrong(name, "yields no sample")
    samples = [_from_function(item, index) for index, item in enumerate(items)]
    return StoredSamples(
        words=f"those of {name.rpartition('/')[2]}",
        kind="inputs",
        samples=samples[:divided_count],
        is_split=by_split,
        unseen=samples[divided_count:],
    )


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def _from_function(item: Any, index: int) -> StoredSample:
    if isinstance(item, Mapping) and "inputs" in item:
        name, label = item.get("name"), item.get("label")
        label = None if label is None else int(label)
        return StoredSample(name=str(name or f"sample {index}"), read=lambda: item["inputs"], label=label)
    return StoredSample(name=f"sample {index}", read=lambda: item)


def _pictures(folder: Path) -> list[StoredSample]:
    """Return the pictures of a folder. If it has folders, each of these is a class, and their order is the label."""
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        return [_picture(file, None, file.name) for file in _picture_files(folder)]
    return [
        _picture(file, label, str(file.relative_to(folder)))
        for label, of_class in enumerate(classes)
        for file in _picture_files(of_class)
    ]


def _picture_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())


def _picture(file: Path, label: int | None, name: str) -> StoredSample:
    def read() -> Image.Image:
        try:
            with Image.open(file) as picture:
                return picture.convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise_shortage(error)
            raise _wrong(str(file), f"not a readable image: {printable(error)}") from error

    return StoredSample(name=name, read=read, label=label)


def _npy(path: Path) -> list[StoredSample]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not array.ndim:
        raise ValueError("one number; the first axis must be that of the samples")
    as_tensor(array[:0])  # the error about a type that PyTorch lacks
    return [StoredSample(name=f"sample {n}", read=lambda n=n: as_tensor(array[n : n + 1])) for n in range(len(array))]


def _npz(path: Path) -> list[StoredSample]:
    with path.open("rb") as stream:  # NumPy leaves a damaged file open that it opened itself
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("one array without a name; its ending is .npy")
        with file:
            return _of_arrays({name: file[name] for name in file.files})


def _safetensors(path: Path) -> list[StoredSample]:
    with safe_open(path, framework="np") as file:
        return _of_arrays({name: file.get_tensor(name) for name in sorted(file.keys())})


def _of_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[StoredSample]:
    """Return the samples of named arrays.

    A name is `<input>`, whose array has the samples along its first axis, or `<sample>/<input>`, whose array is the
    whole input of one sample. The array `label` (or `<sample>/label`) has the right classes. The names that NumPy
    gives to unnamed arrays, `arr_0` …, are the positions of the inputs.
    """
    if any("/" in name for name in arrays):
        if flat := [name for name in arrays if "/" not in name]:
            raise ValueError(f"{flat[0]} is not of the form <sample>/<input>, as other arrays of the file are")
        by_sample: dict[str, dict[str, NDArray[Any]]] = {}
        for name, array in arrays.items():
            sample, _, given = name.rpartition("/")
            by_sample.setdefault(sample, {})[given] = array
        return [_of_inputs(name, inputs) for name, inputs in sorted(by_sample.items(), key=_by_number)]
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"the first axis of all arrays is that of the samples, but {described}")
    return [
        _of_inputs(
            f"sample {n}", {name: array[n] if name in _LABELS else array[n : n + 1] for name, array in arrays.items()}
        )
        for n in range(next(iter(lengths.values()), 0))
    ]


def _by_number(sample: tuple[str, object]) -> tuple[int, str]:
    return (int(sample[0]) if sample[0].isdecimal() else 0, sample[0])


def _of_inputs(name: str, inputs: Mapping[str, NDArray[Any]]) -> StoredSample:
    labels = [np.asarray(array) for key, array in inputs.items() if key in _LABELS]
    tensors = {key: as_tensor(array) for key, array in inputs.items() if key not in _LABELS}
    label = int(labels[0].reshape(-1)[0]) if labels and labels[0].size == 1 else None
    if tensors and all(re.fullmatch(r"arr_\d+", key) for key in tensors):
        positions = sorted(tensors, key=lambda key: int(key[4:]))
        return StoredSample(name=name, read=lambda: tuple(tensors[key] for key in positions), label=label)
    return StoredSample(name=name, read=lambda: tensors, label=label)


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor. NumPy's default float64 becomes PyTorch's default float32."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _lines(path: Path) -> list[StoredSample]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise_shortage(error)
        raise _wrong(str(path), f"not a text file in UTF-8: {printable(error)}") from error
    return [StoredSample(name=_shortened(line), read=lambda line=line: line) for line in lines if line.strip()]


def _shortened(line: str) -> str:
    return line if len(line) <= 40 else f"{line[:38]} …"


def _wrong(place: str, problem: str) -> RequestError:
    return RequestError(problem, key="samples", value=printable(place))


def divided(available: int, counts: Mapping[str, int], unseen: int = 0) -> dict[str, list[int]]:
    """Return which samples of one place are for the evaluation, which others for the calibration, and `unseen` others.

    The samples of each are spread over the place, because data are often sorted. If there are fewer than the first two
    need, each of these gets its share, and at least one. A single sample is used for both.
    """
    evaluated = counts["evaluation"]
    if available < sum(counts.values()):
        evaluated = max(1, min(evaluated, available * evaluated // sum(counts.values())))
    evaluation = _spread(range(available), evaluated)
    others = _without(range(available), evaluation)
    calibration = _spread(others, counts["calibration"]) if others else evaluation
    rest = _spread(_without(others, calibration), unseen)
    return {"evaluation": evaluation, "calibration": calibration, "unseen": rest}


def _without(numbers: Sequence[int], used: Sequence[int]) -> list[int]:
    return sorted(set(numbers) - set(used))


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    count = min(count, len(numbers))
    return [numbers[(2 * number + 1) * len(numbers) // (2 * count)] for number in range(count)]
