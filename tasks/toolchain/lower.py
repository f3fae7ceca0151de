"""The lowering of an edge program to one SoC's programs. Runs in a fork of the worker that has the edge program.

The reference, the shipping program and the debug program come from the same edge program.
"""

import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace

from executorch.devtools import BundledProgram
from executorch.devtools.backend_debug import get_delegation_info
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer
from executorch.exir import ExecutorchProgramManager
from executorch.exir.backend.utils import format_delegated_graph
from torch.export import ExportedProgram

from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.errors import ToolchainError, raise_shortage
from qnnsweep.tasks.records import Blob, CompilerRefusal, LoweredMethod, LoweredProgram, ModelFacts, TensorSpec
from qnnsweep.tasks.records.debugged import joined
from qnnsweep.tasks.records.keys import tensor_key, tensor_name
from qnnsweep.tasks.records.options import LoweringOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.compiler import CompilationRefused, Compiler
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.compile import Compiled, compile_edge, compile_methods
from qnnsweep.tasks.toolchain.conversion import converting
from qnnsweep.tasks.toolchain.debug_program import debug_program
from qnnsweep.tasks.toolchain.edge import EdgeModel
from qnnsweep.tasks.toolchain.profiling import instructions, profile_program
from qnnsweep.tasks.toolchain.readback.facts import program_facts
from qnnsweep.tasks.toolchain.reference.designed import design_of, designed_outputs
from qnnsweep.tasks.toolchain.reference.operators import delegation_counts, subgraphs
from qnnsweep.tasks.toolchain.tensors import outputs_by_sample, put_tensors, read_tensors


@converting()
def lower_model(
    models: Sequence[EdgeModel], facts: ModelFacts, soc: SocConfig | None, options: LoweringOptions, store: Store
) -> LoweredProgram:
    """Compile the programs for one SoC: a shipping program with all methods, and the other programs method by method.

    If there is no debug program of a method, its `debug_unavailable` is the reason.
    """
    compiler = backend_of(options.kind).compiler(options.scheme, soc)
    profiles = [
        profile_program(compiler, model.program, model.method, options.profile_level, store) for model in models
    ]
    shipped = _shipping(compiler, models, keep=options.dump_operators)
    program = store.put_bytes(shipped[0].program.buffer)
    bundled = _bundled(store, shipped[0].program, models)
    methods = [
        replace(_designed(_lowered(model, ship, program, options, store), model, compiler, store), profile=profile)
        for model, ship, profile in zip(models, shipped, profiles, strict=True)
    ]
    if options.dump_operators:
        del shipped
        gc.collect()  # a graph and its nodes refer to each other
        pairs = zip(methods, models, strict=True)
        methods = [
            joined(method, [debug_program(model, compiler, options.kind, None, store)]) for method, model in pairs
        ]
    return LoweredProgram(
        model=facts,
        scheme=options.scheme.name,
        backend=options.kind,
        soc=soc.name if soc else None,
        program=program,
        bundled_program=bundled,
        methods=tuple(methods),
    )


def lower_unless_refused(
    models: Sequence[EdgeModel], facts: ModelFacts, soc: SocConfig | None, options: LoweringOptions, store: Store
) -> LoweredProgram | CompilerRefusal:
    """Compile the programs for one SoC, or return the compiler's refusal with the nodes that its messages are about.

    Raises MachineFault if the compiler failed for lack of memory, disk space, descriptors or threads.
    """
    try:
        return lower_model(models, facts, soc, options, store)
    except CompilationRefused as error:
        raise_shortage(error)
        sources = {operator.name: operator.source_nodes for model in models for operator in model.operators}
        found = (sources[name][-1] for name in error.suspects if sources.get(name))
        return CompilerRefusal(text=str(error), nodes=tuple(dict.fromkeys(found)))


def _shipping(compiler: Compiler, models: Sequence[EdgeModel], *, keep: bool) -> list[Compiled]:
    """Compile the shipping program. `keep`: leave the edge programs usable."""
    edges = [copy.deepcopy(model.program) if keep else model.program for model in models]
    methods = [model.method for model in models]
    if len(models) == 1:
        return [compile_edge(compiler, edges[0], methods[0], debug=False)]
    programs = {method: edge.exported_program(method) for method, edge in zip(methods, edges, strict=True)}
    return compile_methods(compiler, programs)


def _lowered(model: EdgeModel, ship: Compiled, program: Blob, options: LoweringOptions, store: Store) -> LoweredMethod:
    """Return the record of one method, with its part of the shipping program and without the other programs."""
    graph = ship.graph
    _check_order(model.quantized.exported.inputs, graph)
    info = get_delegation_info(graph.graph_module)
    numbers = subgraphs(graph)
    return LoweredMethod(
        quantized=model.quantized,
        debug_programs=(),
        etrecord=None,
        input_qparams=model.input_qparams,
        output_operators=model.output_operators,
        operators=tuple(replace(row, subgraph=numbers.get(row.debug_handle or 0)) for row in model.operators),
        expected_tensors=(),
        chosen=model.chosen,
        choosable=model.choosable,
        reference_calls=model.reference_calls,
        reference_constants=model.reference_constants,
        reference=model.reference,
        outputs_lowered=model.outputs_lowered,
        lowered_note=model.lowered_note,
        graph_change=model.graph_change,
        outputs_edge=model.outputs_edge,
        design=model.design,
        outputs_designed=model.outputs_designed,
        designed_unavailable=model.designed_unavailable,
        delegation=delegation_counts(info, graph, ship.log.refusals),
        delegated_subgraphs=info.num_delegated_subgraphs,
        delegated_graph=store.put_bytes(format_delegated_graph(graph.graph_module).encode()),
        compile_facts=tuple(ship.log.compile_facts),
        facts=program_facts(program, backend_of(options.kind), store, model.method),
        instructions=instructions(ship.program, model.method),
        references=model.references,
        weights=model.weights,
    )


def _designed(lowered: LoweredMethod, model: EdgeModel, compiler: Compiler, store: Store) -> LoweredMethod:
    """Return a method with the design of its delegates, which are known now, and with the outputs of this design.

    The samples to capture stay those that were chosen before the delegates were known.
    """
    given = model.graph, lowered.operators, lowered.input_qparams
    subgraphs = {operator.index: operator.subgraph for operator in lowered.operators}
    design = design_of(*given, lowered.exported.inputs, compiler, subgraphs)
    if design == model.design:
        return lowered
    outputs = designed_outputs(*given, design, model.samples)
    if isinstance(outputs, str):
        return replace(lowered, design=design, outputs_designed=None, designed_unavailable=outputs)
    designed = put_tensors(store, outputs_by_sample(outputs))
    return replace(lowered, design=design, outputs_designed=designed, designed_unavailable=None)


def _check_order(inputs: Sequence[TensorSpec], lowered: ExportedProgram) -> None:
    """Raise ToolchainError if the program does not take its inputs in the order in which the runner passes them."""
    expected = [spec.name for spec in inputs]
    actual = list(lowered.graph_signature.user_inputs)
    # A pass may rename an input. But if the same names are in another order, inputs were exchanged.
    if len(actual) != len(expected) or (actual != expected and sorted(map(str, actual)) == sorted(expected)):
        raise ToolchainError(
            f"the lowered program takes the inputs {actual}, the model {expected}", stage="lower", cause="inputs"
        )


def _bundled(store: Store, program: ExecutorchProgramManager, models: Sequence[EdgeModel]) -> Blob:
    """Store the program with test cases for ExecuTorch's own verification. The cases expect eager PyTorch's outputs."""
    suites = [MethodTestSuite(method_name=model.method, test_cases=[*_cases(store, model)]) for model in models]
    return store.put_bytes(serialize_from_bundled_program_to_flatbuffer(BundledProgram(program, suites)))


def _cases(store: Store, model: EdgeModel) -> Iterator[MethodTestCase]:
    expected = read_tensors(store, model.quantized.exported.outputs_eager)
    outputs = len({tensor_name(key) for key in expected})
    for sample in (choice.sample for choice in model.chosen):
        answers = [expected[tensor_key(sample, index)] for index in range(outputs)]
        yield MethodTestCase(inputs=model.samples[sample], expected_outputs=answers)
