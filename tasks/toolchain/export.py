"""The export of a configured model, with its samples and its eager outputs. Runs in a worker."""

import copy
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qnnsweep.conf.models import DataConfig, MethodConfig, ModelConfig, Split
from qnnsweep.tasks.errors import QnnsweepError, RequestError
from qnnsweep.tasks.records import Driven, ExportedMethod, ExportedModel, ModelFacts, Place, TensorSpec
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.calls import operator_calls
from qnnsweep.tasks.toolchain.io_mistakes import mistaken_answers
from qnnsweep.tasks.toolchain.repeatable import (
    State,
    another_function,
    check_inputs,
    check_repeated,
    check_states,
    check_traced,
    copies,
)
from qnnsweep.tasks.toolchain.sequences import driven_samples
from qnnsweep.tasks.toolchain.tensors import dtype_name, flat_outputs, outputs_by_sample, put_tensors
from qnnsweep.tasks.toolchain.writes import lost_writes

Sample = Mapping[str, Any]


def export_model(model: ModelConfig, store: Store) -> ExportedModel:
    """Create the model and its samples, run the model eagerly, and export it, method by method.

    Raises RequestError if the factory or a data source fails, or if the samples do not match the configured inputs.
    An error of torch.export is raised unchanged.
    """
    methods = [*methods_of_model(model, store)]
    weights = dict.fromkeys(str(getattr(method.module, "weights_origin", "unstated")) for method in methods)
    return ExportedModel(
        model=ModelFacts(name=model.name, weights=", ".join(weights), driven=methods[0].driven),
        methods=tuple(_exported(method, store) for method in methods),
    )


def check_model(model: ModelConfig) -> None:
    """Create the model and its samples, and run each method twice on a sample. Raises RequestError like `export_model`.

    Only the export finds the lines that change the model or its inputs.
    """
    for method in methods_of_model(model):
        with torch.no_grad():
            inputs, state = method.arguments("evaluation")[:1], State(method.module)
            _, changed = _answers(method, inputs)
            check_repeated(model.name, changed, None, state)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A method of a model: a module whose `forward` computes it, and its samples."""

    name: str | None
    model: ModelConfig  # with the inputs and the samples of the method
    module: torch.nn.Module
    evaluation: list[Sample]
    calibration: list[Sample]
    driven: Driven | None = None  # of the model
    positions: tuple[Place, ...] | None = None

    def arguments(self, split: Split) -> list[tuple[torch.Tensor, ...]]:
        """Return the inputs of every sample, in the order of the method's arguments."""
        samples = self.calibration if split == "calibration" else self.evaluation
        return [_arguments(self.model, sample) for sample in samples]


def methods_of_model(model: ModelConfig, store: Store | None = None) -> Iterator[Method]:
    """Create every method and its samples. `store`: for the plan of a model with states; None if it is not needed."""
    modules = list(_modules(model))
    if model.states is None:
        for name, only, module in modules:
            assert only.evaluation is not None, "checked by qnnsweep.conf.load"
            yield Method(
                name=name,
                model=only,
                module=module,
                evaluation=_samples(only, "evaluation", only.evaluation),
                calibration=_samples(only, "calibration", only.calibration) if only.calibration else [],
            )
        return
    called = {
        name or METHOD: (only.inputs, lambda inputs, only=only, module=module: _answer(only, module, inputs))
        for name, only, module in modules
    }
    assert model.evaluation is not None, "checked by qnnsweep.conf.load"
    sequences = _sourced("evaluation", model.evaluation)
    key = f"model.evaluation.source={model.evaluation.source}"
    vocabulary = getattr(modules[0][2], "vocabulary", None)
    evaluation = driven_samples(model, called, sequences, key, store, vocabulary)
    calibration = None
    if model.calibration is not None:
        sequences = _sourced("calibration", model.calibration)
        key = f"model.calibration.source={model.calibration.source}"
        calibration = driven_samples(model, called, sequences, key, None)
    for name, only, module in modules:
        samples = evaluation.samples[name or METHOD]
        if not samples:
            raise RequestError(f"model.evaluation.source: no step calls the method {name}")
        yield Method(
            name=name,
            model=only,
            module=module,
            evaluation=samples,
            calibration=calibration.samples[name or METHOD] if calibration else [],
            driven=evaluation.driven,
            positions=tuple(evaluation.positions[name or METHOD]),
        )


def _modules(model: ModelConfig) -> Iterator[tuple[str | None, ModelConfig, torch.nn.Module]]:
    """Yield every method's name, configuration and module. Methods with equal factory and arguments share a module."""
    modules: dict[str, torch.nn.Module] = {}
    for number, config in enumerate([None] if model.methods is None else model.methods):
        only = model if config is None else _of_method(model, config)
        key = f"{only.factory} {only.arguments}"
        make_deterministic()
        if key not in modules:
            modules[key] = _module(only)
        module = modules[key]
        if config is not None:
            module = _with_forward(module, config.function, f"model.methods[{number}]")
        yield None if config is None else config.name, only, module


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


def _with_forward(module: torch.nn.Module, function: str, key: str) -> torch.nn.Module:
    """Return a module that has the parameters of `module`, and whose `forward` is the function with this name."""
    kind = type(module)
    forward = getattr(kind, function, None)
    if not callable(forward):
        raise RequestError(f"{key}.function={function}: {kind.__name__} has no such function")
    if function == METHOD:
        return module
    method = copy.copy(module)
    # The class and not the instance has the function: torch.export takes the module paths of operators from the class.
    method.__class__ = type(kind.__name__, (kind,), {METHOD: forward, "__module__": kind.__module__})
    return method


def _exported(method: Method, store: Store) -> ExportedMethod:
    model, module, evaluation, calibration = method.model, method.module, method.evaluation, method.calibration
    arguments = method.arguments("evaluation")
    names = [str(sample.get("name") or f"sample {index}") for index, sample in enumerate(evaluation)]
    with torch.no_grad():
        program, answers = _program(method, arguments)
        exported = program.module()
        exported_answers = [exported(*copies(inputs)) for inputs in arguments]
    for name, answer, expected in zip(names, exported_answers, answers, strict=True):
        check_traced(model.name, name, answer, expected)
    torch.export.save(program, "program.pt2")
    specs = tuple(TensorSpec(name=spec.name, shape=tuple(spec.shape), dtype=spec.dtype) for spec in model.inputs)
    mistakes, mistaken = mistaken_answers(module, specs, arguments, answers)
    links = method.driven.plan.links if method.driven else ()
    states = dict.fromkeys(link.output for link in links if link.method == (method.name or METHOD))
    return ExportedMethod(
        method=method.name,
        program=store.put_file(Path("program.pt2")),
        inputs=specs,
        outputs=tuple(
            TensorSpec(name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype))
            for name, tensor in flat_outputs(answers[0]).items()
        ),
        calibration=put_tensors(store, _by_name(model, calibration)) if calibration else None,
        calibration_samples=len(calibration),
        evaluation=put_tensors(store, _by_name(model, evaluation)),
        sample_names=tuple(names),
        labels=tuple(None if sample.get("label") is None else int(sample["label"]) for sample in evaluation),
        outputs_eager=put_tensors(store, outputs_by_sample(answers)),
        outputs_exported=put_tensors(store, outputs_by_sample(exported_answers)),
        input_mistakes=mistakes,
        mistaken_outputs=put_tensors(store, mistaken),
        positions=method.positions,
        states=None if method.driven is None else tuple(states),
        calls=operator_calls(program),
        lost_writes=lost_writes(program.graph) or None,
    )


def _program(
    method: Method, arguments: Sequence[tuple[torch.Tensor, ...]]
) -> tuple[torch.export.ExportedProgram, list[object]]:
    """Return the exported program, and the outputs of eager PyTorch for every sample.

    Raises RequestError if the model changes itself or its inputs, so that its outputs depend on earlier calls.
    """
    name, module = method.model.name, method.module
    state = State(module)
    answers, changed = _answers(method, arguments)
    try:
        program = torch.export.export(module, copies(arguments[0]), strict=True)
    except Exception:
        # What torch.export says about a model that changes itself is not the reason.
        check_repeated(name, changed, None, state)
        raise
    check_inputs(name, [spec.name for spec in method.model.inputs], program)
    check_states(name, program)
    check_repeated(name, changed, program, state)
    return program, answers


def _answers(method: Method, arguments: Sequence[tuple[torch.Tensor, ...]]) -> tuple[list[object], str | None]:
    """Return eager PyTorch's outputs for every sample, and how far a last call on the first one is from the first."""
    *answers, again = (_answer(method.model, method.module, copies(inputs)) for inputs in (*arguments, arguments[0]))
    return answers, another_function(again, answers[0])


def make_deterministic() -> None:
    """Use one thread and a fixed seed, so that results depend neither on the number of cores nor on chance."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # The fast path of nn.TransformerEncoder, which torch.export does not take, returns zeros for padded positions.
    torch.backends.mha.set_fastpath_enabled(False)


def _module(model: ModelConfig) -> torch.nn.Module:
    factory = imported(model.factory, "model.factory")
    try:
        module = factory(**model.arguments)
    except QnnsweepError:
        raise
    except Exception as error:  # a user's own code may raise anything
        raise RequestError(f"model.factory={model.factory}: {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise RequestError(f"model.factory={model.factory}: returned a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def _samples(model: ModelConfig, split: str, data: DataConfig) -> list[Sample]:
    samples = _sourced(split, data)
    for number, sample in enumerate(samples):
        _check_sample(model, f"model.{split}.source={data.source}: sample {number}", sample)
    return samples


def _sourced(split: str, data: DataConfig) -> list[Sample]:
    """Return what the source of a split yields."""
    source = imported(data.source, f"model.{split}.source")
    key = f"model.{split}.source={data.source}"
    try:
        samples: list[Sample] = list(itertools.islice(source(data.count, **data.arguments), data.count))
    except QnnsweepError:
        raise
    except Exception as error:  # a user's own code may raise anything
        raise RequestError(f"{key}: {type(error).__name__}: {error}") from error
    if not samples:
        raise RequestError(f"{key}: returned no sample")
    return samples


def _check_sample(model: ModelConfig, where: str, sample: Sample) -> None:
    if not isinstance(sample, Mapping) or not isinstance(sample.get("inputs"), Mapping):
        raise RequestError(f"{where} is not a mapping with the key 'inputs'")
    expected = [spec.name for spec in model.inputs]
    if sorted(sample["inputs"]) != sorted(expected):
        raise RequestError(f"{where} has the inputs {sorted(sample['inputs'])}; model.inputs names {expected}")
    for spec in model.inputs:
        tensor = torch.as_tensor(sample["inputs"][spec.name])
        if list(tensor.shape) != list(spec.shape) or dtype_name(tensor.dtype) != spec.dtype:
            raise RequestError(
                f"{where}: input {spec.name} is {dtype_name(tensor.dtype)}{list(tensor.shape)}; "
                f"model.inputs says {spec.dtype}{list(spec.shape)}"
            )


def _answer(model: ModelConfig, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> object:
    try:
        answer = module(*inputs)
    except Exception as error:  # a user's own code may raise anything
        line = next(iter(str(error).strip().splitlines()), "")
        raise RequestError(
            f"the model {model.name} cannot run on an evaluation sample: {type(error).__name__}: {line}; "
            f"correct its forward, or the arguments of model.factory={model.factory}"
        ) from error
    if not flat_outputs(answer):
        raise RequestError(f"model.factory={model.factory}: the module returns no tensor")
    return answer


def _arguments(model: ModelConfig, sample: Sample) -> tuple[torch.Tensor, ...]:
    return tuple(torch.as_tensor(sample["inputs"][spec.name]) for spec in model.inputs)


def _by_name(model: ModelConfig, samples: list[Sample]) -> dict[str, torch.Tensor]:
    return {
        tensor_key(number, spec.name): tensor
        for number, sample in enumerate(samples)
        for spec, tensor in zip(model.inputs, _arguments(model, sample), strict=True)
    }


def imported(path: str, key: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"{key}={path}: {error}; expected package.module:function, importable here") from error
    except Exception as error:  # importing runs a user's own code
        raise RequestError(f"{key}={path}: importing it raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RequestError(f"{key}={path}: is a {type(function).__name__}, not a function")
    return function
