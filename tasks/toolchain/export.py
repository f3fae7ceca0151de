"""The export of a configured model, with its samples and its eager outputs. Runs in a worker."""

from collections.abc import Sequence
from pathlib import Path

import torch

from qnnsweep.conf.models import ModelConfig, Split
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import ExportedMethod, ExportedModel, ModelFacts, TensorSpec
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.calls import operator_calls
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.io_mistakes import mistaken_answers
from qnnsweep.tasks.toolchain.methods import Method, eager_answer, methods_of_model
from qnnsweep.tasks.toolchain.refusals import check_samples
from qnnsweep.tasks.toolchain.repeatable import (
    State,
    another_function,
    check_inputs,
    check_repeated,
    check_states,
    check_traced,
    copies,
)
from qnnsweep.tasks.toolchain.tensors import dtype_name, flat_outputs, left_out, outputs_by_sample, put_tensors
from qnnsweep.tasks.toolchain.trace import traced
from qnnsweep.tasks.toolchain.user_code import created_module
from qnnsweep.tasks.toolchain.writes import lost_writes


def export_model(model: ModelConfig, store: Store) -> ExportedModel:
    """Create the model and its samples, run the model eagerly, and export it, method by method.

    Raises RequestError if the factory or a data source fails, if the samples do not match the configured inputs, or if
    the model has no program that is the same for all inputs.
    """
    methods = [*methods_of_model(model, store)]
    weights = dict.fromkeys(text for method in methods for text in _origin(method))
    return ExportedModel(
        model=ModelFacts(
            name=model.name, weights=", ".join(weights), driven=methods[0].driven, samples=_samples_origin(methods)
        ),
        methods=tuple(_exported(method, store) for method in methods),
    )


def _samples_origin(methods: Sequence[Method]) -> str | None:
    """Return where the samples are from, in words of the data sources; None if they do not say it."""
    evaluation, calibration = (
        "; ".join(dict.fromkeys(str(sample["origin"]) for sample in samples if sample.get("origin")))
        for samples in (
            [sample for method in methods for sample in method.evaluation],
            [sample for method in methods for sample in method.calibration],
        )
    )
    if not calibration or calibration == evaluation:
        return evaluation or None
    return "; ".join(filter(None, (evaluation, f"calibrated with {calibration}")))


def check_model(model: ModelConfig) -> None:
    """Create the model and its samples, and export each method on one sample. Raises RequestError like `export_model`.

    Nothing is stored.
    """
    for method in methods_of_model(model):
        checked_program(method, method.arguments("evaluation")[:1])


def _origin(method: Method) -> list[str]:
    """Return where the weights come from, and from which dtypes they were converted."""
    converted = [f"converted from {' and '.join(method.converted)} to float32"] if method.converted else []
    return [str(getattr(method.module, "weights_origin", "unstated")), *converted]


def positional_inputs(model: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the inputs that a configuration of the model can list; none if `forward` needs other structures.

    Raises RequestError like `check_model`.
    """
    make_deterministic()
    (method,) = methods_of_model(model)
    own = created_module(model)
    with torch.no_grad():
        inputs = method.arguments("evaluation")[0]
        expected = flat_outputs(eager_answer(method.model, method.module, copies(inputs)))
        try:
            found = flat_outputs(eager_answer(model, own, copies(inputs)))
        except RequestError:  # the inputs are not the first arguments of `forward`
            return ()
    if list(found) != list(expected) or not all(map(torch.equal, found.values(), expected.values())):
        return ()
    return tuple(TensorSpec(name=spec.name, shape=tuple(spec.shape), dtype=spec.dtype) for spec in method.model.inputs)


def _exported(method: Method, store: Store) -> ExportedMethod:
    model, module, evaluation, calibration = method.model, method.module, method.evaluation, method.calibration
    arguments = method.arguments("evaluation")
    program, answers, exported_answers = checked_program(method, arguments)
    torch.export.save(program, "program.pt2")
    specs = tuple(TensorSpec(name=spec.name, shape=tuple(spec.shape), dtype=spec.dtype) for spec in model.inputs)
    mistakes, mistaken = mistaken_answers(module, specs, arguments, answers)
    links = method.driven.plan.links if method.driven else ()
    states = dict.fromkeys(link.output for link in links if link.method == (method.name or METHOD))
    return ExportedMethod(
        method=method.name,
        program=store.take_file(Path("program.pt2")),
        inputs=specs,
        outputs=tuple(
            TensorSpec(name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype))
            for name, tensor in flat_outputs(answers[0]).items()
        ),
        calibration=put_tensors(store, by_name(method, "calibration")) if calibration else None,
        calibration_samples=len(calibration),
        evaluation=put_tensors(store, by_name(method, "evaluation")),
        sample_names=tuple(_sample_names(method)),
        labels=tuple(None if sample.get("label") is None else int(sample["label"]) for sample in evaluation),
        outputs_eager=put_tensors(store, outputs_by_sample(answers)),
        outputs_exported=put_tensors(store, outputs_by_sample(exported_answers)),
        input_mistakes=mistakes,
        mistaken_outputs=put_tensors(store, mistaken),
        positions=method.positions,
        states=None if method.driven is None else tuple(states),
        calls=operator_calls(program),
        left_out=left_out(answers[0]),
        lost_writes=lost_writes(program.graph) or None,
    )


def checked_program(
    method: Method, arguments: Sequence[tuple[torch.Tensor, ...]]
) -> tuple[torch.export.ExportedProgram, list[object], list[object]]:
    """Return the exported program, and for every sample the outputs of eager PyTorch and of the program.

    Raises RequestError if the model changes itself or its inputs, so that its outputs depend on earlier calls, if it
    cannot be exported, or if the program is another function than the model.
    """
    name, module = method.model.name, method.module
    inputs = [spec.name for spec in method.model.inputs]
    named = (dict(zip(inputs, values, strict=True)) for values in arguments)
    check_samples(name, zip(_sample_names(method), named, strict=False))
    state = State(module)
    with torch.no_grad():
        answers, changed = _answers(method, arguments)
        try:
            program = traced(name, module, arguments[0], answers[0])
        except RequestError:
            # What torch.export says about a model that changes itself is not the reason.
            check_repeated(name, changed, None, state)
            raise
        check_inputs(name, inputs, program)
        check_states(name, program)
        check_repeated(name, changed, program, state)
        exported = program.module()
        exported_answers = [exported(*copies(values)) for values in arguments]
    for sample, answer, expected in zip(_sample_names(method), exported_answers, answers, strict=False):
        check_traced(name, sample, answer, expected)
    return program, answers, exported_answers


def _sample_names(method: Method) -> list[str]:
    return [str(sample.get("name") or f"sample {index}") for index, sample in enumerate(method.evaluation)]


def _answers(method: Method, arguments: Sequence[tuple[torch.Tensor, ...]]) -> tuple[list[object], str | None]:
    """Return eager PyTorch's outputs for every sample, and how far a last call on the first one is from the first."""
    *answers, again = (
        eager_answer(method.model, method.module, copies(inputs)) for inputs in (*arguments, arguments[0])
    )
    return answers, another_function(again, answers[0])


def by_name(method: Method, split: Split) -> dict[str, torch.Tensor]:
    """Return the inputs of all samples, by the keys of a tensor file."""
    return {
        tensor_key(number, spec.name): tensor
        for number, inputs in enumerate(method.arguments(split))
        for spec, tensor in zip(method.model.inputs, inputs, strict=True)
    }
