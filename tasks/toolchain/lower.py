"""The lowering of an edge program to one SoC's programs. Runs in a fork of the worker that has the edge program.

The reference, the shipping program and the debug program come from the same edge program.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from executorch.devtools import BundledProgram
from executorch.devtools.backend_debug import get_delegation_info
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer
from executorch.exir import ExecutorchProgramManager
from executorch.exir.backend.utils import format_delegated_graph
from torch.export import ExportedProgram

from conf.schema import SocConfig
from tasks.errors import ToolchainError
from tasks.records import Blob, LoweredProgram, TensorSpec
from tasks.records.keys import METHOD, tensor_key, tensor_name
from tasks.records.options import LoweringOptions
from tasks.storage.store import Store
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.compile import Unavailable, compile_edge, try_compile
from tasks.toolchain.edge import EdgeModel
from tasks.toolchain.profiling import instructions, profile_program
from tasks.toolchain.readback.facts import program_facts
from tasks.toolchain.reference.operators import delegation_counts, subgraphs
from tasks.toolchain.requantized import requantized_tensors
from tasks.toolchain.tensors import read_tensors


def lower_model(model: EdgeModel, soc: SocConfig | None, options: LoweringOptions, store: Store) -> LoweredProgram:
    """Compile the programs for one SoC. If there is no debug program, `debug_unavailable` is the reason."""
    backend = backend_of(options.kind)
    compiler = backend.compiler(options.scheme, soc)
    exported = model.quantized.exported
    edge = model.program
    profile = profile_program(compiler, edge, options.profile_level, store)
    ship = compile_edge(compiler, copy.deepcopy(edge) if options.dump_operators else edge, debug=False)
    graph = ship.edge.exported_program()
    _check_order(exported.inputs, graph)
    info = get_delegation_info(graph.graph_module)
    numbers = subgraphs(graph)
    program = store.put_bytes(ship.program.buffer)
    lowered = LoweredProgram(
        quantized=model.quantized,
        backend=options.kind,
        soc=soc.name if soc else None,
        program=program,
        debug_program=None,
        debug_unavailable=None,
        bundled_program=_bundled(store, ship.program, model),
        etrecord=None,
        input_qparams=model.input_qparams,
        operators=tuple(replace(row, subgraph=numbers.get(row.debug_handle or 0)) for row in model.operators),
        expected_tensors=(),
        operator_samples=model.operator_samples,
        reference_calls=model.reference_calls,
        reference_constants=model.reference_constants,
        reference=model.reference,
        outputs_edge=model.outputs_edge,
        outputs_designed=model.outputs_designed,
        designed_unavailable=model.designed_unavailable,
        delegation=delegation_counts(info, graph, ship.log.refusals),
        delegated_subgraphs=info.num_delegated_subgraphs,
        delegated_graph=store.put_bytes(format_delegated_graph(graph.graph_module).encode()),
        compile_facts=tuple(ship.log.compile_facts),
        debug_buffer_bytes=0,
        facts=program_facts(program, backend, store),
        debug_facts=None,
        instructions=instructions(ship.program),
        profile=profile,
        references=model.references,
    )
    if not options.dump_operators:
        return replace(lowered, debug_unavailable="measure.dump_operators is off")
    edge._etrecord = model.etrecord
    debug = try_compile(compiler, edge, debug=compiler.has_debug_program)
    if isinstance(debug, Unavailable):
        return replace(lowered, debug_unavailable=debug.reason)
    debug_program = store.put_bytes(debug.program.buffer)
    etrecord = debug.program.get_etrecord()
    etrecord.update_representative_inputs(model.samples[0])
    etrecord.save("etrecord.bin")
    return replace(
        lowered,
        debug_program=debug_program,
        etrecord=store.put_file(Path("etrecord.bin")),
        expected_tensors=debug.dumped,
        requantized=requantized_tensors(debug.log.requantized, lowered.operators, instructions(debug.program)),
        debug_buffer_bytes=debug.logged_bytes,
        debug_facts=program_facts(debug_program, backend, store),
    )


def _check_order(inputs: Sequence[TensorSpec], lowered: ExportedProgram) -> None:
    """Raise ToolchainError if the program does not take its inputs in the order in which the runner passes them."""
    expected = [spec.name for spec in inputs]
    actual = list(lowered.graph_signature.user_inputs)
    # A pass may rename an input. But if the same names are in another order, inputs were exchanged.
    if len(actual) != len(expected) or (actual != expected and sorted(map(str, actual)) == sorted(expected)):
        raise ToolchainError(
            f"the lowered program takes the inputs {actual}, the model {expected}", stage="lower", cause="inputs"
        )


def _bundled(store: Store, program: ExecutorchProgramManager, model: EdgeModel) -> Blob:
    """Store the program with test cases for ExecuTorch's own verification. The cases expect eager PyTorch's outputs."""
    expected = read_tensors(store, model.quantized.exported.outputs_eager)
    outputs = len({tensor_name(key) for key in expected})
    cases = [
        MethodTestCase(
            inputs=inputs, expected_outputs=[expected[tensor_key(sample, index)] for index in range(outputs)]
        )
        for sample, inputs in enumerate(model.samples[: model.operator_samples])
    ]
    bundled = BundledProgram(program, [MethodTestSuite(method_name=METHOD, test_cases=cases)])
    return store.put_bytes(serialize_from_bundled_program_to_flatbuffer(bundled))
