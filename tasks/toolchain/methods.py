"""The methods of a configured model: a module whose `forward` computes each of them, and its samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from qnnsweep.conf.models import MethodConfig, ModelConfig, Split
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import Driven, Place
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.flat_module import with_flat_inputs, with_forward
from qnnsweep.tasks.toolchain.float32 import OTHER_FLOATS, as_float32, computes_in_float64, in_float32, other_floats
from qnnsweep.tasks.toolchain.refusals import check_loaded, place_of
from qnnsweep.tasks.toolchain.samples import Sample, configured_samples, given_place, sourced, template_of
from qnnsweep.tasks.toolchain.sequences import driven_samples
from qnnsweep.tasks.toolchain.tensors import dtype_name, flat_outputs
from qnnsweep.tasks.toolchain.user_code import created_module


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A method of a model: a module whose `forward` computes it, and its samples.

    `forward` takes the inputs of the method as tensors by position. The samples have these inputs by name.
    """

    name: str | None
    model: ModelConfig  # with the inputs and the samples of the method
    module: torch.nn.Module
    evaluation: list[Sample]
    calibration: list[Sample]
    converted: tuple[str, ...] = ()  # what was converted to float32: the dtypes of the weights, or what is in `forward`
    driven: Driven | None = None  # of the model
    positions: tuple[Place, ...] | None = None

    def arguments(self, split: Split) -> list[tuple[torch.Tensor, ...]]:
        """Return the inputs of every sample, in the order of the method's arguments."""
        samples = self.calibration if split == "calibration" else self.evaluation
        return [tuple(torch.as_tensor(sample["inputs"][spec.name]) for spec in self.model.inputs) for sample in samples]


def methods_of_model(model: ModelConfig, store: Store | None = None) -> Iterator[Method]:
    """Create every method and its samples. `store`: for the plan of a model with states; None if it is not needed."""
    modules = list(_modules(model))
    if model.states is None:
        for name, only, module, converted in modules:
            yield without_float64(_sampled(name, only, module, converted))
        return
    called = {
        name or METHOD: (only.inputs, lambda inputs, only=only, module=module: eager_answer(only, module, inputs))
        for name, only, module, _ in modules
    }
    assert model.evaluation is not None, "checked by qnnsweep.conf.load"
    sequences = sourced("evaluation", model.evaluation)
    key = f"model.evaluation.source={model.evaluation.source}"
    vocabulary = getattr(modules[0][2], "vocabulary", None)
    evaluation = driven_samples(model, called, sequences, key, store, vocabulary)
    calibration = None
    if model.calibration is not None:
        sequences = sourced("calibration", model.calibration)
        key = f"model.calibration.source={model.calibration.source}"
        calibration = driven_samples(model, called, sequences, key, None)
    for name, only, module, converted in modules:
        samples = evaluation.samples[name or METHOD]
        if not samples:
            raise RequestError(f"model.evaluation.source: no step calls the method {name}")
        yield Method(
            name=name,
            model=only,
            module=module,
            converted=converted,
            evaluation=samples,
            calibration=calibration.samples[name or METHOD] if calibration else [],
            driven=evaluation.driven,
            positions=tuple(evaluation.positions[name or METHOD]),
        )


def eager_answer(model: ModelConfig, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> object:
    """Return what the module returns. Raises RequestError if it fails, or returns no tensor."""
    try:
        answer = module(*inputs)
    except Exception as error:  # a user's own code may raise anything
        check_loaded(model.name, error)
        line = next(iter(str(error).strip().splitlines()), "")
        doubles = [
            f"{spec.name}.float()"
            for spec, value in zip(model.inputs, inputs, strict=False)
            if value.dtype is torch.float64
        ]
        samples = f"the samples are in float64, so give {', '.join(doubles)}; or " if doubles else ""
        raise RequestError(
            f"the model {model.name} cannot run on an evaluation sample: {type(error).__name__}: {line}"
            f"{place_of(error)}; {samples}correct its forward, or the arguments of model.factory={model.factory}"
        ) from error
    if not flat_outputs(answer):
        raise RequestError(f"model.factory={model.factory}: the module returns no tensor")
    return answer


def without_float64(method: Method) -> Method:
    """Return a method that computes in float32 where the given one, whose weights are in float32, uses float64."""
    is_program = isinstance(method.module, torch.fx.GraphModule)
    if is_program or method.converted or not computes_in_float64(method.module, method.arguments("evaluation")[0]):
        return method
    return replace(method, module=in_float32(method.module), converted=("float64 in forward",))


def _sampled(name: str | None, model: ModelConfig, module: torch.nn.Module, converted: tuple[str, ...]) -> Method:
    """Return a method of a model without states, with its samples."""
    assert model.evaluation is not None, "checked by qnnsweep.conf.load"
    if model.inputs:
        evaluation = configured_samples(model, "evaluation", model.evaluation)
        calibration = configured_samples(model, "calibration", model.calibration) if model.calibration else []
        return Method(
            name=name,
            model=_with_float32_inputs(model) if converted else model,
            module=module,
            converted=converted,
            evaluation=_as_float32(evaluation) if converted else evaluation,
            calibration=_as_float32(calibration) if converted else calibration,
        )
    sources = (("evaluation", model.evaluation), ("calibration", model.calibration))
    given = {
        split: (f"{given_place(split, data)}: sample", sourced(split, data))
        for split, data in sources
        if data is not None
    }
    return sampled_method(name, model, module, converted, given)


def sampled_method(
    name: str | None,
    model: ModelConfig,
    module: torch.nn.Module,
    converted: tuple[str, ...],
    given: Mapping[str, tuple[str, Sequence[Sample]]],
) -> Method:
    """Return a method with samples of any structure, of which the first one for the evaluation says the inputs.

    `converted`: the dtypes from which the weights of the module were converted. `given`: the samples for the evaluation
    and perhaps for the calibration, each with what they are, for errors.
    """
    templates = {
        split: [
            (sample, template_of(module, f"{where} {number}", sample))
            for number, sample in enumerate(_as_float32(samples) if converted else samples)
        ]
        for split, (where, samples) in given.items()
    }
    first = templates["evaluation"][0][1]
    samples: Mapping[str, list[dict[str, Any]]] = {
        split: [{**sample, "inputs": first.tensors(template)} for sample, template in found]
        for split, found in templates.items()
    }
    return Method(
        name=name,
        model=replace(model, inputs=first.inputs),
        module=module if first.is_plain else with_flat_inputs(module, first),
        converted=converted,
        evaluation=[*samples["evaluation"]],
        calibration=[*samples.get("calibration", ())],
    )


def _with_float32_inputs(model: ModelConfig) -> ModelConfig:
    names = {dtype_name(dtype) for dtype in OTHER_FLOATS}
    return replace(
        model, inputs=[replace(spec, dtype="float32") if spec.dtype in names else spec for spec in model.inputs]
    )


def _as_float32(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples with float32 in place of other floating-point dtypes. What is no sample stays as it is."""
    return [
        {**sample, "inputs": tree_map(as_float32, sample["inputs"])}
        if isinstance(sample, Mapping) and "inputs" in sample
        else sample
        for sample in samples
    ]


def _modules(model: ModelConfig) -> Iterator[tuple[str | None, ModelConfig, torch.nn.Module, tuple[str, ...]]]:
    """Yield every method's name, configuration and module, and the dtypes from which its weights were converted.

    Methods with equal factory and arguments share a module.
    """
    modules: dict[str, tuple[torch.nn.Module, tuple[str, ...]]] = {}
    for number, config in enumerate([None] if model.methods is None else model.methods):
        only = model if config is None else _of_method(model, config)
        key = f"{only.factory} {only.arguments}"
        make_deterministic()
        if key not in modules:
            created = created_module(only)
            modules[key] = created, other_floats(created)
        module, converted = modules[key]
        if config is not None:
            module = _with_function(module, config.function, f"model.methods[{number}]")
        if converted:
            module = in_float32(module)
        yield None if config is None else config.name, only, module, converted


def _of_method(model: ModelConfig, method: MethodConfig) -> ModelConfig:
    return replace(
        model,
        factory=method.factory or model.factory,
        arguments={**model.arguments, **method.arguments},
        inputs=method.inputs,
        calibration=method.calibration,
        evaluation=method.evaluation,
        methods=None,
    )


def _with_function(module: torch.nn.Module, function: str, key: str) -> torch.nn.Module:
    """Return a module whose `forward` is the function with this name. Raises RequestError if there is none."""
    kind = type(module)
    forward = getattr(kind, function, None)
    if not callable(forward):
        raise RequestError(f"{key}.function={function}: {kind.__name__} has no such function")
    return module if function == METHOD else with_forward(module, forward)
