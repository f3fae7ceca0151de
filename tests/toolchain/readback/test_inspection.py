"""Programs that users made without qnnsweep, read from their bytes."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load, save

from qnnsweep.flows.runs.program_diff import cell_changes
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import InspectedProgram, InspectedTensor, LoweredProgram
from qnnsweep.tasks.toolchain.backends.qnn.isolated import graphs_of
from qnnsweep.tasks.toolchain.backends.qnn.options import options_of
from qnnsweep.tasks.toolchain.readback.inspection import inspect_program
from qnnsweep.tasks.toolchain.readback.program_changes import ProgramChange, program_changes
from qnnsweep.tasks.toolchain.readback.pte import read_pte

import damage  # isort: skip
import tutorial  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

LLAMA = Path(__file__).parents[2] / "data" / "llm" / "stories260k_hybrid_llama_qnn.pte"


@pytest.fixture(scope="module")
def programs(resources: Resources) -> dict[str, bytes]:
    return resources.workers.call("lower", tutorial.programs).value


def constants(program: InspectedProgram) -> dict[str, str | None]:
    return {tensor.name: tensor.sha256 for tensor in program.tensors if tensor.role == "constant"}


def digest(tensor: object) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor)).hexdigest()


def test_an_xnnpack_program_shows_its_subgraphs_and_the_bytes_of_its_constants(programs: dict[str, bytes]) -> None:
    program = inspect_program(programs["xnnpack"])
    (method,), ends = program.methods, [tensor for tensor in program.tensors if tensor.subgraph is None][:2]
    assert (method.method, method.delegates, method.returns) == ("forward", len(program.delegates), None)
    assert [(end.role, end.dtype, end.shape) for end in ends] == [
        ("input", "float32", (1, 3, 16, 16)),
        ("output", "float32", (1, 10)),
    ]
    nodes = Counter(row.subgraph for row in program.operators if row.subgraph is not None)
    assert {(row.backend, row.calls, row.unread) for row in program.delegates} == {("XnnpackBackend", 1, None)}
    assert {row.subgraph: row.nodes for row in program.delegates} == nodes
    state = tutorial.transformer().state_dict()
    read = constants(program)
    assert read["XNNConv2d 1/filter"] == digest(state["patches.weight"].permute(0, 2, 3, 1).numpy())
    last = max(row.subgraph for row in program.operators if row.operator == "XNNFullyConnected")
    of_head = [row for row in program.tensors if row.subgraph == last and row.role == "constant"]
    assert [row.sha256 for row in of_head] == [digest(state["head.weight"].numpy()), digest(state["head.bias"].numpy())]
    assert {row.key: row.sha256 for row in program.named_data} == {row.key: row.key for row in program.named_data}


def test_a_portable_program_shows_its_kernels_their_arguments_and_constants(programs: dict[str, bytes]) -> None:
    program = inspect_program(programs["portable"])
    assert program.delegates == program.options == program.named_data == ()
    first = program.operators[0]
    assert (first.operator, first.arguments) == ("aten::convolution.out", "(4, 4) (0, 0) (1, 1) False (0, 0) 1")
    state = tutorial.transformer().state_dict()
    read = constants(program)
    assert read["aten::convolution.out 0, argument 1"] == digest(state["patches.weight"].numpy())
    assert {digest(value.numpy()) for value in state.values()} == set(read.values())


def test_a_program_of_several_methods_shows_the_graph_of_each() -> None:
    program = inspect_program(LLAMA.read_bytes())
    methods = {row.method: row.returns for row in program.methods}
    assert list(methods)[:2] == ["kv_forward", "prefill_forward"]
    assert (methods["get_dim"], methods["get_use_kv_cache"], methods["kv_forward"]) == ("64", "True", None)
    assert [(row.method, row.bytes, row.shared_with, row.unread) for row in program.delegates] == [
        ("kv_forward", 1331456, None, None),
        ("prefill_forward", 1331456, "kv_forward", None),
    ]
    options = {(row.method, row.option): (row.asked, row.got) for row in program.options}
    assert options["kv_forward", "soc_info.soc_model"] == ("SM8650", "SM8650")
    assert options["prefill_forward", "QNN build"] == (None, "v2.37.0.250724175447_124859")
    cache = InspectedTensor(
        method="prefill_forward", subgraph=0, role="input", name="input_2_args_0@0", dtype="ufixed8",
        shape=(1, 4, 8, 96), scale=(0.18736502528190613,), zero_point=(128,), bytes=None, sha256=None,
    )  # fmt: skip
    assert cache in program.tensors
    # What the program itself says about its caches, and what its compiled graph has.
    assert methods["get_kv_output_1_quant_attr"] == "0.18736502528190613, 128, 0, 255, 'torch.uint8'"


def test_a_program_of_qnnsweep_shows_what_the_lowering_recorded(lowered: LoweredProgram, resources: Resources) -> None:
    (method,) = lowered.methods
    assert method.debug_programs[0].program is not None
    assert method.debug_facts is not None
    (delegate,) = method.debug_facts.delegates
    program = inspect_program(resources.store.read(method.debug_programs[0].program))
    assert delegate.context is not None
    grids = {
        (row.name, row.role): (row.scale and row.scale[0], row.zero_point and row.zero_point[0])
        for row in program.tensors
        if row.subgraph == 0
    }
    assert grids == {(row.name, row.role): (row.scale, row.zero_point) for row in delegate.context.tensors}


@pytest.mark.parametrize(
    ("backend", "where", "what"),
    [
        ("xnnpack", "forward 7", "XNNFullyConnected 0/bias sha256"),
        ("portable", "forward", "aten::addmm.out 50, argument 0 sha256"),
    ],
)
def test_two_programs_with_one_changed_constant_differ_in_this_constant(
    backend: str, where: str, what: str, programs: dict[str, bytes]
) -> None:
    a, b = (inspect_program(programs[name]) for name in (backend, f"{backend}_changed"))
    before, after = (digest(tutorial.transformer(bias).head.bias.detach().numpy()) for bias in (0.0, 0.5))
    assert program_changes(a, a) == []
    assert program_changes(a, b) == [
        ProgramChange(kind="constant", where=where, what=what, before=f"{before[:12]}…", after=f"{after[:12]}…")
    ]


def test_an_added_operator_is_no_change_of_the_operators_behind_it(programs: dict[str, bytes]) -> None:
    program = inspect_program(programs["portable"])
    renumbered = [replace(row, number=row.number - 1) for row in program.operators[1:]]
    changes = program_changes(replace(program, operators=tuple(renumbered)), program)
    added = ProgramChange(
        kind="operator", where="forward", what="aten::convolution.out", before="absent", after="present"
    )
    assert changes == [added]


def test_two_lowerings_with_one_changed_weight_differ_in_this_weight(
    lowered: LoweredProgram, resources: Resources
) -> None:
    (method,), store = lowered.methods, resources.store
    constants = load(store.read(method.reference_constants))
    name = next(name for name, tensor in constants.items() if tensor.shape == (10, 512))
    constants[name] = constants[name] + (np.arange(constants[name].size).reshape(10, 512) == 7).astype(np.int8)
    changed = replace(method, reference_constants=store.put_bytes(save(constants)))
    assert cell_changes(store, lowered, replace(lowered, made=())) == []
    (change,) = cell_changes(store, lowered, replace(lowered, methods=(changed,)))
    assert (change.kind, change.where) == ("constant", "edge graph of forward")
    assert re.fullmatch(rf"{name}, read by quantized_decomposed_dequantize_per_\w+ sha256", change.what)


@pytest.mark.slow
def test_a_mutated_program_is_read_or_refused_in_one_line_and_nothing_else(programs: dict[str, bytes]) -> None:
    outcomes = Counter[str]()
    for name, data in (("xnnpack", programs["xnnpack"]), ("portable", programs["portable"])):
        for number in range(500):
            changed = damage.mutated(data, random.Random(f"{name} {number}"))
            try:
                program_changes(inspect_program(data), inspect_program(changed))
                outcomes["read"] += 1
            except EvidenceError as error:
                outcomes["refused" if "\n" not in str(error) else "several lines"] += 1
    assert outcomes["read"] + outcomes["refused"] == 1000
    assert min(outcomes["read"], outcomes["refused"]) > 100


def test_mutated_options_of_qnn_are_read_or_refused() -> None:
    (delegate, *_) = read_pte(LLAMA.read_bytes()).methods[0].delegates
    (spec,) = delegate.compile_specs
    outcomes = Counter[str]()
    for number in range(300):
        value = damage.mutated(spec.value, random.Random(number))
        mutated = type(delegate)(id=delegate.id, compile_specs=(type(spec)(key=spec.key, value=value),), processed=b"")
        try:
            outcomes["read"] += bool(options_of(mutated))
        except EvidenceError:
            outcomes["refused"] += 1
    assert min(outcomes["read"], outcomes["refused"]) > 20


@pytest.mark.slow
def test_mutated_context_binaries_end_at_most_the_process_that_reads_them() -> None:
    (delegate, *_) = read_pte(LLAMA.read_bytes()).methods[0].delegates
    head, rest = delegate.processed[:8192], delegate.processed[8192:]
    binaries = [damage.mutated(head, random.Random(number)) + rest for number in range(200)]
    answers = graphs_of([delegate.processed, *binaries, delegate.processed])
    assert answers[0] == answers[-1]
    assert list(answers[0]) == ["kv_forward", "prefill_forward"]
    assert len(answers) == 202
    assert {type(answer) for answer in answers} == {str, dict}


def test_bytes_that_are_no_context_binary_say_so() -> None:
    whole = read_pte(LLAMA.read_bytes()).methods[0].delegates[0].processed
    assert graphs_of([whole[:4096], b"nothing"]) == [
        "not a readable QNN context binary: 1331200 bytes announced, 3840 present; it was cut short",
        r"not a readable QNN context binary: it begins with b'noth', not b'\xcd\xabxV'",
    ]
