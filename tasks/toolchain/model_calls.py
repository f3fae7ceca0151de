"""The distinct operator calls of a model as modules of their own, with the tensors that they get in the model.

A call is a graph of one operator. Its weights are those of the model, and its samples are the tensors that the model's
samples lead to, so that a quantized call has the ranges that it has in the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from qnnsweep.conf.models import SAMPLES_OF_CALLS, ModelConfig, Split
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain.calls import call_texts
from qnnsweep.tasks.toolchain.methods import eager_answer, methods_of_model
from qnnsweep.tasks.toolchain.repeatable import copies
from qnnsweep.tasks.toolchain.trace import traced


@dataclass(kw_only=True, slots=True)
class ModelCall:
    """The first of the equal calls of a model. `samples`: the tensor arguments per sample, by the kind of samples."""

    name: str
    operator: str
    module: GraphModule
    names: tuple[str, ...]
    samples: dict[Split, list[tuple[torch.Tensor, ...]]] = field(
        default_factory=lambda: {split: [] for split in SAMPLES_OF_CALLS}
    )
    skipped: str | None = None


_calls_of: dict[str, list[ModelCall]] = {}
"""The calls by the digest of their model. Forks of this process have them, too."""


def model_calls(model: ModelConfig) -> list[ModelCall]:
    """Return the distinct calls of a model, in the order of its methods and graphs. Raises like `export_model`."""
    key = digest(model)
    if key not in _calls_of:
        _calls_of[key] = [*_calls(model)]
    return _calls_of[key]


def call_cases(model: ModelConfig) -> Iterator[dict[str, Any]]:
    """Yield the calls as cases of a collection. See `qnnsweep.tasks.atlas.collection`."""
    for number, call in enumerate(model_calls(model)):
        (first, *_) = call.samples["evaluation"] or [()]
        yield {
            "name": call.name,
            "operator": call.operator,
            "arguments": {"number": number},
            "inputs": dict(zip(call.names, first, strict=bool(first))),
            "skipped": call.skipped,
        }


def call_module(model: ModelConfig, number: int) -> torch.nn.Module:
    """Return the module of a call, for `model.factory`."""
    return model_calls(model)[number].module


def call_samples(count: int, *, model: ModelConfig, number: int, split: Split) -> Iterator[Mapping[str, Any]]:
    """Yield the tensors that a call gets, for the data sources. `split`: `calibration` or `evaluation`."""
    call = model_calls(model)[number]
    for tensors in call.samples[split][:count]:
        yield {"inputs": dict(zip(call.names, tensors, strict=True))}


def _calls(model: ModelConfig) -> Iterator[ModelCall]:
    texts: set[str] = set()
    for method in methods_of_model(model):
        with torch.no_grad():
            first = method.arguments("evaluation")[0]
            answer = eager_answer(method.model, method.module, copies(first))
            program = traced(method.model.name, method.module, first, answer)
            constants = _constants(program)
            calls: dict[Node, ModelCall] = {}
            for node, text in call_texts(program):
                if text not in texts:
                    texts.add(text)
                    calls[node] = _call(node, text, constants, method.name)
            for split, most in SAMPLES_OF_CALLS.items():
                for inputs in method.arguments(split)[:most]:
                    _Recorder(program, calls, split, constants).run_on(inputs)
        yield from calls.values()


def _call(node: Node, text: str, constants: Mapping[str, torch.Tensor], method: str | None) -> ModelCall:
    """Return a call without samples."""
    graph, root = Graph(), torch.nn.Module()
    inputs = _inputs(node, constants)
    values = {source: graph.placeholder(f"input_{number}") for number, source in enumerate(inputs)}
    for source in node.all_input_nodes:
        if source.name in constants:
            root.register_parameter(source.name, torch.nn.Parameter(constants[source.name], requires_grad=False))
            values[source] = graph.get_attr(source.name)
    target = _functional(node.target)
    others = [source for source in node.all_input_nodes if source not in values]
    skipped = "it has no tensor as input" if not inputs else None
    if others:
        skipped = f"its argument {others[0].name} is no tensor"
    else:
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
        graph.output(graph.call_function(target, args, kwargs))
    return ModelCall(
        name=node.name if method is None else f"{method}/{node.name}",
        operator=text.partition("(")[0],
        module=GraphModule(root, graph if not others else Graph()),
        names=tuple(value.name for value in values.values() if value.op == "placeholder"),
        skipped=skipped,
    )


def _inputs(node: Node, constants: Mapping[str, torch.Tensor]) -> list[Node]:
    """Return the nodes whose tensors a call gets, each once."""
    tensors = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
    return [source for source in tensors if source.name not in constants]


def _functional(target: Any) -> Any:
    """Return the overload that does not change its input, if there is one."""
    name, overload = str(target).removeprefix("aten.").split(".", 1)
    if not target._schema.is_mutable or not name.endswith("_"):
        return target
    return getattr(getattr(torch.ops.aten, name[:-1], None), overload, target)


def _constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants of a program, by the names of their nodes."""
    held = {**program.state_dict, **program.constants}
    return {
        spec.arg.name: held[spec.target].detach()
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT and spec.target in held
    }


class _Recorder(Interpreter):
    """Runs a program, and keeps the tensors that the calls get."""

    def __init__(
        self,
        program: ExportedProgram,
        calls: Mapping[Node, ModelCall],
        split: Split,
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(program.graph_module)
        self._signature = program.graph_signature
        self._calls = {node.name: (node, call) for node, call in calls.items()}
        self._split: Split = split
        self._constants = constants

    def run_on(self, inputs: Sequence[torch.Tensor]) -> None:
        """Run the program on the inputs of a sample."""
        rest = iter(inputs)
        values = [
            next(rest) if spec.kind is InputKind.USER_INPUT else self._constants[spec.arg.name].clone()
            for spec in self._signature.input_specs
        ]
        self.run(*values)

    def run_node(self, n: Node) -> Any:
        if n.name in self._calls:
            node, call = self._calls[n.name]
            tensors = (self.env[source] for source in _inputs(node, self._constants))
            call.samples[self._split].append(tuple(tensor.clone() for tensor in tensors))
        return super().run_node(n)
