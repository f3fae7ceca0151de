"""Captures that were made without qnnsweep, as the records that the comparison reads. Runs in a worker."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qnnsweep.conf.errors import printable
from qnnsweep.tasks.errors import EvidenceError, RequestError, raise_shortage
from qnnsweep.tasks.models.sample_files import stored_samples
from qnnsweep.tasks.numerics.timing import EXECUTION
from qnnsweep.tasks.records import (
    Blob,
    Capture,
    CapturedMethod,
    ChosenSample,
    DebugFiles,
    DebugProgram,
    Design,
    ExpectedTensor,
    ExportedMethod,
    GraphTensor,
    LoweredMethod,
    LoweredProgram,
    ModelFacts,
    Operator,
    ProgramFacts,
    Quantization,
    QuantizedMethod,
    TensorSpec,
)
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.qnn.layouts import axis_orders
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.captured_files import CapturedFiles
from qnnsweep.tasks.toolchain.deterministic import make_deterministic
from qnnsweep.tasks.toolchain.readback.etdump import read_etdump
from qnnsweep.tasks.toolchain.readback.etdump import tensor as logged_tensor
from qnnsweep.tasks.toolchain.readback.etrecord import RecordedMethod, read_etrecord
from qnnsweep.tasks.toolchain.readback.facts import program_facts
from qnnsweep.tasks.toolchain.readback.pte import Pte, PteInstruction, PteMethod, read_pte
from qnnsweep.tasks.toolchain.reference.graph import ReferenceGraph, graph_of
from qnnsweep.tasks.toolchain.reference.operators import operator_table, output_operators
from qnnsweep.tasks.toolchain.reference.stored_graph import put_graph, put_values
from qnnsweep.tasks.toolchain.tensors import dtype_name, outputs_by_sample, put_tensors

_BACKENDS = {"QnnBackend": "qnn", "XnnpackBackend": "xnnpack"}
_FIXED = re.compile(r"(?P<sign>[us])fixed(?P<bits>\d+)")
_QUANTIZE = "quantized_decomposed_quantize_per_tensor_default"
_NOT_RECORDED = "an ETRecord does not contain it"
Samples = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCell:
    """The records of a program that was executed elsewhere, and of its capture."""

    lowered: LoweredProgram
    capture: Capture
    method: str
    reference: str
    """The program that the outputs are compared with."""


def foreign_cell(files: CapturedFiles, store: Store) -> ForeignCell:
    """Return the records of a program and of its capture, from files that anyone has made.

    The operators of an exported program have no debug handles.
    Raises EvidenceError if a file is damaged or the files do not fit each other, and RequestError without inputs, and
    without the name of a method if the program has several.
    """
    make_deterministic()
    program = store.put_bytes(files.program.read_bytes())
    contents = read_pte(store.read(program))
    plan = contents.method(_executed(contents, files.method))
    record = read_etrecord(files.etrecord, plan.name)
    samples = _samples(files, record)
    kind = next((_BACKENDS[delegate.id] for delegate in plan.delegates if delegate.id in _BACKENDS), "portable")
    facts = program_facts(program, backend_of(kind), store, plan.name)
    axes = axis_orders(record.edge) if kind == "qnn" and record.has_edge else {}
    method = _method(record, plan, samples, files, store, program, facts)
    method = _on_device(method, axes)
    lowered = LoweredProgram(
        model=ModelFacts(name=files.program.stem, weights="unstated"),
        scheme="unknown",
        backend=kind,
        soc=None,
        program=program,
        bundled_program=None,
        methods=(method,),
    )
    has_exported = record.exported is not None or not record.has_edge
    return ForeignCell(
        lowered=lowered,
        capture=_capture(files, len(samples), len(plan.outputs), store),
        method=plan.name,
        reference="exported program" if has_exported else "edge program",
    )


def _executed(program: Pte, name: str | None) -> str:
    """Return the method that was executed: by default the only one that computes something. Raises RequestError."""
    names = [method.name for method in program.methods if method.instructions]
    if name in names:
        return name
    if name is None and len(names) == 1:
        return names[0]
    problem = f"the methods that compute something are {', '.join(names) or 'none'}; name that of the execution"
    raise RequestError(problem, key="--method", value=None if name is None else printable(name))


def _method(
    record: RecordedMethod,
    plan: PteMethod,
    samples: Samples,
    files: CapturedFiles,
    store: Store,
    program: Blob,
    facts: ProgramFacts,
) -> LoweredMethod:
    edge = graph_of(record.edge)
    names = [str(name) for name in record.edge.graph_signature.user_inputs]
    for sample in samples:
        forms = [[(dtype_name(value.dtype), tuple(value.shape)) for value in sample]]
        forms.append([(tensor.dtype, tensor.shape) for tensor in plan.tensors(plan.inputs)])
        if forms[0] != forms[1]:
            raise EvidenceError(f"the inputs are {forms[0]}, the program takes {forms[1]}")
    operators = _with_unused(operator_table(record.edge), edge)
    calls, constants = put_graph(store, edge)
    with torch.no_grad():
        answers = [edge.walk(sample) for sample in samples]
        eager = answers if record.exported is None else [graph_of(record.exported).walk(sample) for sample in samples]
    outputs_eager, outputs_edge = (put_tensors(store, outputs_by_sample(outputs)) for outputs in (eager, answers))
    nothing, no_bytes = put_tensors(store, {}), store.put_bytes(b"")
    exported = ExportedMethod(
        program=no_bytes,
        inputs=tuple(_spec(name, value) for name, value in zip(names, samples[0], strict=True)),
        outputs=tuple(_spec(f"output_{number}", value) for number, value in enumerate(answers[0])),
        calibration=None,
        calibration_samples=0,
        evaluation=put_tensors(
            store,
            {
                tensor_key(number, name): value
                for number, sample in enumerate(samples)
                for name, value in zip(names, sample, strict=True)
            },
        ),
        sample_names=tuple(f"inference {number}" for number in range(len(samples))),
        labels=(None,) * len(samples),
        outputs_eager=outputs_eager,
        outputs_exported=outputs_eager,
        input_mistakes=(),
        mistaken_outputs=nothing,
    )
    numbers = _subgraphs(plan, record)
    return LoweredMethod(
        quantized=QuantizedMethod(exported=exported, program=no_bytes, outputs_quantized=outputs_eager),
        debug_programs=(DebugProgram(program=program, unavailable=None, facts=facts),),
        etrecord=store.put_file(files.etrecord),
        input_qparams=(None,) * len(names),
        output_operators=output_operators(record.edge, operators),
        operators=tuple(replace(row, subgraph=numbers.get(row.debug_handle or 0)) for row in operators),
        expected_tensors=tuple(_expected(record, plan, operators, edge)),
        chosen=tuple(ChosenSample(sample=number, role="worst") for number in range(len(samples))),
        choosable=len(samples),
        reference_calls=calls,
        reference_constants=constants,
        reference=put_values(store, edge, enumerate(samples)),
        outputs_lowered=outputs_edge,
        outputs_edge=outputs_edge,
        design=Design(halves=(), merged=(), shared_biases=(), written=(), largest_weight=None),
        outputs_designed=None,
        designed_unavailable=_NOT_RECORDED,
        delegation=(),
        delegated_subgraphs=len(plan.delegates),
        delegated_graph=no_bytes,
        compile_facts=(),
        facts=facts,
    )


def _with_unused(operators: Sequence[Operator], edge: ReferenceGraph) -> list[Operator]:
    """Return the operators. In a saved program, an unused output of a call is a node with a name of its own."""
    read = {source for sources in edge.sources for source in sources} | edge.output_calls
    return [
        replace(row, name=f"{operators[row.sources[0]].name}[{row.output_index}]", unused=True)
        if row.target == "getitem" and row.index not in read
        else row
        for row in operators
    ]


def _on_device(method: LoweredMethod, axes: Mapping[str, tuple[int, ...]]) -> LoweredMethod:
    """Return a method whose operators and tensors have the grids of the compiled graphs, and the device's layouts.

    An ETRecord has neither. `axes`: the axis orders by the name of the operator.
    """
    assert method.debug_facts is not None, "the program that was executed"
    contexts = [delegate.context for delegate in method.debug_facts.delegates if delegate.context]
    grids = {tensor.name: grid for context in contexts for tensor in context.tensors if (grid := _grid(tensor))}
    operators = {(row.debug_handle, row.output_index): row for row in method.operators}
    tensors: list[ExpectedTensor] = []
    of_operators: dict[int, Quantization | None] = {}
    for tensor in method.expected_tensors:
        rows = [operators.get((handle, tensor.output_index)) for handle in tensor.debug_handles]
        row = max((row for row in rows if row), key=lambda row: row.index, default=None)
        is_logged = not tensor.identifier.startswith("instruction:")
        if row is not None and is_logged:
            grid = grids.get(tensor.identifier)
            tensor = replace(tensor, quantization=grid, axis_order=axes.get(row.name))
            of_operators[row.index] = grid
        tensors.append(tensor)
    return replace(
        method,
        input_qparams=_input_grids(method, grids),
        expected_tensors=tuple(tensors),
        operators=tuple(
            replace(row, quantization=of_operators.get(row.index), axis_order=axes.get(row.name))
            for row in method.operators
        ),
    )


def _input_grids(method: LoweredMethod, grids: Mapping[str, Quantization]) -> tuple[Quantization | None, ...]:
    """Return the grids of the inputs: QNN's pass inserts one quantize operator per float input, in their order."""
    specs = method.exported.inputs
    floats = [number for number, spec in enumerate(specs) if spec.dtype.startswith("float")]
    inserted = [grid for name, grid in grids.items() if name.startswith(_QUANTIZE)]
    if len(inserted) != len(floats):
        return (None,) * len(specs)
    by_number = dict(zip(floats, inserted, strict=True))
    return tuple(by_number.get(number) for number in range(len(specs)))


def _grid(tensor: GraphTensor) -> Quantization | None:
    match = _FIXED.fullmatch(tensor.dtype)
    if match is None or tensor.scale is None or tensor.zero_point is None:
        return None
    bits, is_signed = int(match["bits"]), match["sign"] == "s"
    least = -(2 ** (bits - 1)) if is_signed else 0
    return Quantization(
        scale=(tensor.scale,),
        zero_point=(tensor.zero_point,),
        axis=None,
        quant_min=least,
        quant_max=least + 2**bits - 1,
        dtype=f"{'' if is_signed else 'u'}int{bits}",
    )


def _samples(files: CapturedFiles, record: RecordedMethod) -> Samples:
    """Return the inputs of every inference."""
    if files.inputs is None:
        if record.inputs is None:
            raise RequestError(f"{files.etrecord.name} has no inputs; give those of the execution", key="--inputs")
        return (record.inputs,)
    if files.inputs.suffix in (".pt", ".pth"):
        try:
            stored: Any = torch.load(files.inputs, weights_only=True)
        except Exception as error:  # a damaged file makes torch raise anything
            raise_shortage(error)
            raise EvidenceError(f"{files.inputs}: not a readable file of tensors") from error
        inferences = stored if isinstance(stored, list) else [stored]
        return tuple(item if isinstance(item, tuple) else (item,) for item in inferences)
    names = list(map(str, record.edge.graph_signature.user_inputs))
    found = [sample.read() for sample in stored_samples(str(files.inputs)).samples]
    return tuple(_ordered(sample, names) for sample in found)


def _ordered(sample: Any, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Return the inputs of a sample in the order of the program. A single array is the only input."""
    by_name = dict(sample) if isinstance(sample, Mapping) else {}
    if len(names) == 1 and len(by_name) < 2:
        values = list(by_name.values()) or [sample]
        return (torch.as_tensor(values[0]),)
    if sorted(by_name) != sorted(names):
        raise EvidenceError(f"the inputs are named {sorted(by_name)}, those of the program {names}")
    return tuple(torch.as_tensor(by_name[name]) for name in names)


def _spec(name: str, value: torch.Tensor) -> TensorSpec:
    return TensorSpec(name=name, shape=tuple(value.shape), dtype=dtype_name(value.dtype))


def _calls(plan: PteMethod) -> Iterator[tuple[int, PteInstruction]]:
    """Yield the delegate calls with their numbers."""
    return ((number, call) for number, call in enumerate(plan.instructions) if call.delegate is not None)


def _subgraphs(plan: PteMethod, record: RecordedMethod) -> dict[int, int]:
    """Map the debug handles of delegated operators to the numbers of the subgraphs, in the order of their calls."""
    calls = enumerate(number for number, _ in _calls(plan))
    return {handle: subgraph for subgraph, number in calls for handle in record.handles.get(number, ())}


def _expected(
    record: RecordedMethod, plan: PteMethod, operators: Sequence[Operator], edge: ReferenceGraph
) -> Iterator[ExpectedTensor]:
    """Yield the tensors that the delegates and the runtime log; see `reference.operators.expected_instructions`."""
    logged: set[int] = set()
    for number, _ in _calls(plan):
        for identifier, handles in record.logged.get(number, {}).items():
            index = identifier.rpartition("@")[2]
            logged.update(handles)
            yield _tensor(identifier, handles, int(index) if index.isdecimal() else 0)
    for number, _ in _calls(plan):
        outputs = _delegate_outputs(record, number, operators, edge)
        for position, (handle, index) in enumerate(outputs):
            handles = () if handle is None or handle in logged else (handle,)
            yield _tensor(f"instruction:{number}:{position}", handles, index)
    kernels = [number for number, call in enumerate(plan.instructions) if call.is_kernel]
    last = {handle: number for number in kernels for handle in record.handles.get(number, ())}
    for number in kernels:
        handles = record.handles.get(number, ())
        result = plan.values[plan.instructions[number].arguments[-1]]
        for position in range(len(result) if isinstance(result, tuple) else 1) if handles else ():
            of_position = tuple(handle for handle in handles if last[handle] == number)
            yield _tensor(f"instruction:{number}:{position}", of_position, position)


def _delegate_outputs(
    record: RecordedMethod, number: int, operators: Sequence[Operator], edge: ReferenceGraph
) -> list[tuple[int | None, int]]:
    """Return the debug handle and the output index of every output of a delegate call; no handle if it is not known.

    The outputs are in the order of the graph. The last node of a subgraph is an output.
    """
    handles, count = record.handles.get(number, ()), record.outputs.get(number, 1)
    members = [row for row in operators if row.debug_handle in handles]
    if not members:
        return [(None, 0)] * count
    if count == 1:
        last = [row for row in members if row.debug_handle == handles[-1]][-1]
        return [(last.debug_handle, last.output_index)]
    if len(set(handles)) == 1:
        return [(handles[0], 0)] * count
    inside = {row.index for row in members}
    read_outside = {
        source for index, sources in enumerate(edge.sources) if index not in inside for source in sources
    } | edge.output_calls
    outputs = [row for row in members if row.index in read_outside and row.shape is not None]
    is_whole = len(members) == len(handles) and len(outputs) == count
    return [(row.debug_handle, row.output_index) for row in outputs] if is_whole else [(None, 0)] * count


def _tensor(identifier: str, handles: tuple[int, ...], index: int) -> ExpectedTensor:
    return ExpectedTensor(
        identifier=identifier, debug_handles=handles, output_index=index, quantization=None, axis_order=None
    )


def _capture(files: CapturedFiles, samples: int, outputs: int, store: Store) -> Capture:
    """Return the capture, with the final outputs that the log has."""
    etdump, buffer = store.put_file(files.etdump), store.put_file(files.buffer)
    dump, data = read_etdump(store.read(etdump)), memoryview(store.read(buffer))
    runs = sorted({event.run for event in dump.events if event.name == EXECUTION})
    finals: dict[str, torch.Tensor] = {}
    for sample, run in enumerate(runs):
        logged = [entry for entry in dump.tensors if entry.run == run and entry.is_output]
        if len(logged) != outputs:
            raise EvidenceError(f"the etdump has {len(logged)} outputs of an inference, the program has {outputs}")
        finals |= {
            tensor_key(sample, index): torch.from_numpy(logged_tensor(entry, data).copy())
            for index, entry in enumerate(logged)
        }
    if len(runs) != samples:
        raise EvidenceError(f"the etdump holds {len(runs)} inferences, and there are inputs for {samples}")
    final = put_tensors(store, finals)
    debug = DebugFiles(samples=tuple(range(samples)), outputs=final, etdump=etdump, buffer=buffer)
    return Capture(
        device="elsewhere", methods=(CapturedMethod(results=(), outputs=final, etdump=etdump, debug=(debug,)),)
    )
