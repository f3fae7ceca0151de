"""The keys `samples` and `calibration`: samples from files, for models by name and for all others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.language_models import FACTORY, completed
from qnnsweep.conf.models import DataConfig, ModelConfig, Split
from qnnsweep.conf.named import COUNTS, SOURCE, kind_of
from qnnsweep.conf.places import PHOTOGRAPHS, SAMPLES_KEYS, is_function
from qnnsweep.conf.schema import Request


def absolute(place: str) -> str:
    """Return the value of one of the `SAMPLES_KEYS` with an absolute path, so that any process can read it.

    A function `FILE.py:FUNCTION` keeps its name. A function of a module and `PHOTOGRAPHS` stay as they are.
    """
    if is_function(place):
        file, _, function = place.rpartition(":")
        return f"{Path(file).expanduser().absolute()}:{function}" if file.endswith(".py") else place
    return place if place in (PHOTOGRAPHS, "") else str(Path(place).expanduser().absolute())


def code_of(place: str | None) -> Path | None:
    """Return the folder of the code of a function that is the value of one of the `SAMPLES_KEYS`; None for others."""
    if place is None or not is_function(place):
        return None
    file = place.rpartition(":")[0]
    return Path(file).absolute().parent if file.endswith(".py") else Path.cwd()


def with_samples(request: Request) -> Request:
    """Return the request with the data sources that `samples` and `calibration` mean.

    A model by name gets its data sources completed in any case, and a language model its methods and states too. With
    one place for both, the samples are divided: those of the evaluation are not used for the calibration. Raises
    RequestError for a place that is no file, for a model whose samples are more than inputs, and for a model by name
    whose inputs are not known without samples.
    """
    model, given = (
        request.model,
        {key: getattr(request, key) for key in SAMPLES_KEYS if getattr(request, key) is not None},
    )
    of_name = model.evaluation is not None and model.evaluation.source == SOURCE
    if not given and not of_name and model.factory != FACTORY:
        return request
    for key, value in given.items():
        _check(key, value, model)
    if model.factory == FACTORY:
        places: dict[Split, str | None] = {
            "evaluation": request.samples,
            "calibration": request.calibration or request.samples,
        }
        return replace(request, model=completed(model, places))
    of_evaluation = request.samples or _stated(model.evaluation)
    of_calibration = request.calibration or (None if request.samples else _stated(model.calibration))
    shared = of_calibration in (None, of_evaluation)
    if of_name and not of_evaluation and kind_of(model) is None and not model.inputs:
        problem = (
            f"the inputs of {printable(model.factory)} are not known; give samples=FILE (.npy, .npz, .safetensors), "
            "samples=FOLDER of images, or samples=FILE.py:FUNCTION"
        )
        raise RequestError(problem, key="samples")
    evaluation = _data(model, "evaluation", of_evaluation, shared=shared, is_given="samples" in given)
    place = of_calibration or of_evaluation
    calibration = _data(model, "calibration", place, shared=shared, is_given=bool(given))
    classifier = model.classifier or any(_has_classes(Path(value)) for value in (of_evaluation,) if value)
    return replace(request, model=replace(model, evaluation=evaluation, calibration=calibration, classifier=classifier))


def _stated(data: DataConfig | None) -> str | None:
    """Return the place that the data source of a model states, if it is `SOURCE`."""
    value = data.arguments.get("samples") if data is not None and data.source == SOURCE else None
    return None if value is None else str(value)


def _data(model: ModelConfig, split: Split, place: str | None, *, shared: bool, is_given: bool) -> DataConfig | None:
    """Return the data source of a split. `shared`: whether both splits are taken from `place`."""
    data = model.evaluation if split == "evaluation" else model.calibration
    if not is_given and (data is None or data.source != SOURCE):
        return data
    counts = {
        "evaluation": model.evaluation.count if model.evaluation else COUNTS["evaluation"],
        "calibration": model.calibration.count if model.calibration else COUNTS["calibration"],
    }
    own = data.arguments if data is not None and data.source == SOURCE else {}
    arguments: dict[str, Any] = {**own, "split": split, "samples": place, "counts": counts if shared else None}
    if (kind := kind_of(model)) is not None:
        arguments |= {"kind": kind, "model": model.arguments}
    arguments["inputs"] = [[spec.name, [*spec.shape], spec.dtype] for spec in model.inputs]
    return DataConfig(source=SOURCE, arguments=arguments, count=counts[split])


def _check(key: str, value: str, model: ModelConfig) -> None:
    if not value:
        raise RequestError("empty; null, or the place of the samples", key=key, value=value)
    if model.methods is not None or model.states is not None or model.cases is not None:
        problem = f"only valid for a model with one method and without states; {printable(model.name)} has its own"
        raise RequestError(problem, key=key, value=printable(value))
    if value == PHOTOGRAPHS or is_function(value):
        file = value.rpartition(":")[0]
        if file.endswith(".py") and not Path(file).is_file():
            raise RequestError("no such file", key=key, value=printable(value))
    elif not Path(value).exists():
        problem = f"no such file or folder; `{key}` is where the samples of {printable(model.name)} are"
        raise RequestError(problem, key=key, value=printable(value))


def _has_classes(place: Path) -> bool:
    """Return whether a folder has a folder per class, whose names are labels."""
    return place.is_dir() and any(entry.is_dir() and not entry.name.startswith(".") for entry in place.iterdir())
