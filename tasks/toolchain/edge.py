"""The edge program of a quantized graph, and the other results that do not depend on the SoC. Runs in a zygote.

The programs for each SoC are compiled in a fork of this zygote. They cannot be compiled from a saved edge program,
because saving loses the attributes of the nodes.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.program._program import _gen_edge_manager_for_partitioners, lift_constant_tensor_pass
from torch.export import ExportedProgram

from qnnsweep.tasks.numerics.samples import choose, sample_noise
from qnnsweep.tasks.records import (
    Blob,
    ChosenSample,
    Design,
    Operator,
    OtherReference,
    Quantization,
    QuantizedMethod,
    Weight,
)
from qnnsweep.tasks.records.keys import METHOD, tensor_key
from qnnsweep.tasks.records.options import LoweringOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.compiler import Compiler, DelegationLog
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.conversion import converting
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.fold import fold_constants
from qnnsweep.tasks.toolchain.nodes import schema_name
from qnnsweep.tasks.toolchain.reference.counterparts import other_reference
from qnnsweep.tasks.toolchain.reference.designed import design_of, designed_outputs
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph, graph_of
from qnnsweep.tasks.toolchain.reference.graph_change import graph_change
from qnnsweep.tasks.toolchain.reference.lowered import LoweredRung, lowered_rung, note_of
from qnnsweep.tasks.toolchain.reference.operators import input_qparams, operator_table, output_operators
from qnnsweep.tasks.toolchain.reference.stored_graph import put_graph, put_values
from qnnsweep.tasks.toolchain.reference.weights import weights_of
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import flat_outputs, outputs_by_sample, put_tensors, read_samples, read_tensors

_ASSERTIONS = frozenset({"aten::_assert_async", "aten::_assert_scalar"})
Samples = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeModel:
    """The edge program of one method in memory, with its operator table and the values that its operators compute."""

    quantized: QuantizedMethod
    program: EdgeProgramManager
    etrecord: Any
    """ExecuTorch's ETRecord, which is saved only with the debug program."""
    samples: Samples
    chosen: tuple[ChosenSample, ...]
    choosable: int
    operators: tuple[Operator, ...]
    input_qparams: tuple[Quantization | None, ...]
    output_operators: tuple[int | None, ...]
    graph: ReferenceGraph
    reference_calls: Blob
    reference_constants: Blob
    reference: tuple[Blob, ...]
    outputs_lowered: Blob | None
    lowered_note: str | None
    graph_change: str | None
    outputs_edge: Blob
    design: Design
    outputs_designed: Blob | None
    designed_unavailable: str | None
    references: tuple[OtherReference, ...]
    weights: tuple[Weight, ...]

    @property
    def method(self) -> str:
        """The name of the method in the program."""
        return self.quantized.exported.name


def edge_model(quantized: QuantizedMethod, options: LoweringOptions, store: Store) -> EdgeModel:
    """Convert the quantized graph with the backend's transforms. Run the edge program's operators on the host."""
    make_deterministic()
    exported = quantized.exported
    inputs = [spec.name for spec in exported.inputs]
    samples = read_samples(store, exported.evaluation, inputs, len(exported.sample_names))
    compiler = backend_of(options.kind).compiler(options.scheme, None)
    edge = edge_program(compiler, load_program(store, quantized.program), exported.name)
    etrecord, edge._etrecord = edge._etrecord, None
    graph = edge.exported_program(exported.name)
    operators = operator_table(graph, compiler)
    programs = {"exported": exported.program, "quantized": quantized.program}
    reference = graph_of(graph)
    answers = _answers(reference, samples)
    calls, constants = put_graph(store, reference)
    qparams = input_qparams(graph, compiler)
    design = design_of(reference, operators, qparams, exported.inputs, compiler, subgraphs={})
    designed: Sequence[object] | str = answers
    grids = (*qparams, *(operator.quantization for operator in operators if not operator.constant))
    if compiler.in_float16() or any(grids):
        designed = designed_outputs(reference, operators, qparams, design, samples)
    unavailable = designed if isinstance(designed, str) else None
    floats = None if quantized.float_weights is None else read_tensors(store, quantized.float_weights)
    lowered = lowered_rung(reference, operators, floats, samples)
    outputs_edge = put_tensors(store, outputs_by_sample(answers))
    outputs_lowered = outputs_edge
    if lowered is not None:
        outputs_lowered = None if lowered.outputs is None else put_tensors(store, outputs_by_sample(lowered.outputs))
    choosable = len(samples) if options.choosable is None else len(exported.samples_of(range(options.choosable)))
    best = answers if unavailable else designed  # the best prediction of the device's outputs
    eager = read_tensors(store, exported.outputs_eager)
    chosen = choose(
        [output_noise(best[sample], eager, sample) for sample in range(choosable)], options.operator_samples
    )
    recorded = {choice.sample: samples[choice.sample] for choice in chosen}
    return EdgeModel(
        quantized=quantized,
        program=edge,
        etrecord=etrecord,
        samples=samples,
        chosen=chosen,
        choosable=choosable,
        operators=tuple(operators),
        input_qparams=qparams,
        output_operators=output_operators(graph, operators),
        graph=reference,
        reference_calls=calls,
        reference_constants=constants,
        reference=put_values(store, reference, recorded.items()),
        outputs_lowered=outputs_lowered,
        lowered_note=note_of(lowered),
        graph_change=_graph_change(quantized, lowered, (answers, reference), graph, operators, samples[0], store),
        outputs_edge=outputs_edge,
        design=design,
        outputs_designed=None if unavailable else put_tensors(store, outputs_by_sample(designed)),
        designed_unavailable=unavailable,
        references=tuple(
            other_reference(name, load_program(store, programs[name]), graph, operators, recorded, store)
            for name in options.references
        ),
        weights=weights_of(graph, operators),
    )


def _graph_change(
    quantized: QuantizedMethod,
    lowered: LoweredRung | None,
    edge: tuple[Sequence[object], ReferenceGraph],
    graph: ExportedProgram,
    operators: Sequence[Operator],
    first: tuple[torch.Tensor, ...],
    store: Store,
) -> str | None:
    """Return what makes the lowered graph another function than the model; None if it is the same or if unknown.

    `edge`: the final outputs and the graph of the edge program, which is the rung if `lowered` is None. `first`: the
    inputs of the first sample.
    """
    exported, (answers, edge_graph) = quantized.exported, edge
    compute = partial(edge_graph.tensors, first) if lowered is None else lowered.values
    if compute is None:
        return None

    def values() -> Mapping[int, object]:
        with torch.no_grad():
            return compute()

    def reference() -> tuple[OtherReference, dict[str, torch.Tensor]]:
        counterparts = other_reference(
            "exported", load_program(store, exported.program), graph, operators, {0: first}, store
        )
        return counterparts, read_tensors(store, counterparts.values)

    return graph_change(
        exported,
        outputs_by_sample(answers if lowered is None else lowered.outputs or ()),
        read_tensors(store, exported.outputs_eager),
        values,
        operators,
        reference,
    )


@converting()
def edge_program(compiler: Compiler, program: ExportedProgram, method: str = METHOD) -> EdgeProgramManager:
    """Return the edge program after the backend's transforms and before any delegation. It is the reference graph."""
    program, passes = compiler.before_edge(program)
    edge = _gen_edge_manager_for_partitioners(
        {method: compiler.partitioners(debug=False, log=DelegationLog())},
        {method: program},
        compiler.compile_config(),
        None,
        True,
    )
    if passes is not None:
        edge = edge.transform({method: passes})
        lift_constant_tensor_pass(edge.exported_program(method))
        fold_constants(edge.exported_program(method), of_weights=False)  # those that the backend's transforms make
    _erase_assertions(edge.exported_program(method))
    assert edge._etrecord is not None
    edge._etrecord.add_extra_export_modules({"edge_after_transform": copy.deepcopy(edge)})
    return edge


def _erase_assertions(program: ExportedProgram) -> None:
    """Erase what only asserts something, such as that `one_hot` reads no class beyond the last: no runtime has it."""
    graph = program.graph
    asserting = [node for node in graph.nodes if schema_name(node) in _ASSERTIONS]
    for node in asserting:
        graph.erase_node(node)
    if asserting:
        graph.eliminate_dead_code()
        program.graph_module.recompile()


def _answers(graph: ReferenceGraph, samples: Samples) -> list[object]:
    """Return the final outputs of every sample."""
    with torch.no_grad():
        return [graph.walk(sample) for sample in samples]


def output_noise(answer: object, eager: Mapping[str, torch.Tensor], sample: int) -> float:
    """Return the noise of a sample's final outputs against those of eager PyTorch."""
    actual = [tensor.detach().numpy() for tensor in flat_outputs(answer).values()]
    return sample_noise((output, eager[tensor_key(sample, index)].numpy()) for index, output in enumerate(actual))
