"""The reference graph as data computes what the edge program does, before and after it is stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records import Blob, LoweredProgram

import graphs  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


@pytest.fixture(scope="module")
def mixed(resources: Resources) -> dict[str, Any]:
    """Three inputs, several outputs, integers and booleans, topk and split."""
    return resources.workers.call("lower", graphs.run_mixed, resources.store).value


def test_a_graph_of_every_type_computes_to_the_bit_what_the_edge_program_does(mixed: dict[str, Any]) -> None:
    assert mixed["outputs"] == [
        "int64[2, 3] same",
        "float32[2, 2] same",
        "float32[2, 3] same",
        "bool[2, 8] same",
        "float32[2, 2] same",
    ]


def test_what_comes_back_from_the_store_is_the_same_graph_and_computes_the_same(mixed: dict[str, Any]) -> None:
    assert mixed["again"] == mixed["outputs"]
    assert mixed["round trip"] == (True, True, True)
    assert mixed["structure"]


def test_calls_are_numbered_like_the_operator_table(mixed: dict[str, Any]) -> None:
    assert mixed["values"] == [None if shape is None else (shape, dtype) for shape, dtype in mixed["table"]]
    assert len(mixed["targets"]) == len(mixed["names"])
    for target, name in zip(mixed["targets"], mixed["names"], strict=True):
        assert name.startswith(target.replace(".", "_").removesuffix("_Tensor").lower())


def test_every_call_knows_whom_it_reads_and_inputs_are_no_calls(mixed: dict[str, Any]) -> None:
    sources = mixed["sources"]
    assert {name: sources[name] for name in ("aten_topk_default", "getitem", "getitem_1", "aten_gather_default")} == {
        "aten_topk_default": ["aten_where_self"],
        "getitem": ["aten_topk_default"],
        "getitem_1": ["aten_topk_default"],
        "aten_gather_default": [],
    }
    assert sources["aten_mul_tensor_1"] == ["getitem_2", "getitem_3"]
    assert mixed["leaving"] == [
        "getitem", "getitem_1", "aten_add_tensor_1", "aten_mul_tensor", "aten_bitwise_and_tensor",
    ] or set(mixed["leaving"]) == {  # whichever the dialect puts first
        "getitem", "getitem_1", "aten_add_tensor_1", "aten_mul_tensor", "aten_bitwise_and_tensor",
    }  # fmt: skip


def test_what_follows_from_parameters_alone_is_constant(mixed: dict[str, Any]) -> None:
    assert "aten_permute_copy_default" in mixed["constant"]
    assert not {"aten_addmm_default", "aten_topk_default", "getitem", "aten_gather_default"} & set(mixed["constant"])


def test_a_part_that_nobody_takes_has_a_row_of_its_own(mixed: dict[str, Any]) -> None:
    assert mixed["unused"] == ["aten_split_with_sizes_copy_default[1]"]


def test_numbers_without_a_json_form_come_back_exactly(mixed: dict[str, Any], resources: Resources) -> None:
    calls, _ = mixed["blobs"]
    text = resources.store.read(calls).decode()
    assert '{"float": "-inf"}' in text
    assert "Infinity" not in text
    assert '{"dtype": "float32"}' in text
    json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("position", [0, 1])
def test_the_lowered_programs_graph_gives_what_the_lowering_kept(
    lowered: LoweredProgram, resources: Resources, position: int
) -> None:
    sample = lowered.methods[0].chosen[position].sample
    stored = resources.workers.call("lower", graphs.run_lowered, lowered, sample, resources.store).value
    constants = [row.index for row in lowered.methods[0].operators if row.constant]
    assert stored == {
        "operators": [
            row.index
            for row in lowered.methods[0].operators
            if not (row.constant or row.unused) and row.shape is not None
        ],
        "differing": [],
        "outputs": ["float32[1, 10] same"],
        "constants": constants,
        "leaving": [next(row.index for row in lowered.methods[0].operators if row.target == "aten.linear.default")],
    }


def test_the_lowered_programs_graph_is_the_edge_program(lowered: LoweredProgram, resources: Resources) -> None:
    differing = resources.workers.call("lower", graphs.run_edge_program, lowered, resources.store).value
    assert differing == ["float32[1, 10] same"] * 8


FLOATS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def called(resources: Resources, *asked: Any) -> Any:
    return resources.workers.call("compare", graphs.call, *asked).value


def test_an_operator_without_a_mixed_precision_kernel_is_computed_in_single(resources: Resources) -> None:
    pair = ({"input": 0}, {"input": 1})
    value = called(resources, "aten.mm.default", pair, (FLOATS.astype(np.float16), FLOATS), "float16")
    assert (value.dtype, value.tolist()) == (np.float16, (FLOATS @ FLOATS).tolist())


@pytest.mark.parametrize(
    ("target", "arguments", "why"),
    [
        ("aten.nothing.default", ({"input": 0},), "aten.nothing.default is not registered on this host"),
        ("nowhere.relu.default", ({"input": 0},), "nowhere.relu.default is not registered on this host"),
        ("aten.relu", ({"input": 0},), "aten.relu is not registered on this host"),
        ("load_library", ("/tmp/evil.so",), "load_library is not registered on this host"),
        ("load_library.__func__.__call__", ("/tmp/evil.so",), "load_library.__func__.__call__ is not registered"),
        ("aten.save.default", ({"input": 0}, "/tmp/file"), "aten.save.default "),
        ("aten.from_file.default", ("/etc/passwd", False, 9), "aten.from_file.default uses a file"),
        ("aten.relu.default", ({"dtype": "load"},), "torch.load is neither a type nor a layout"),
        ("aten.relu.default", ({"unsaid": "a symbol"},), "a symbol cannot be stored as data"),
        ("aten.mm.default", ({"input": 0}, {"input": 1}), "aten.mm.default: mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_what_the_host_cannot_make_says_why(
    resources: Resources, target: str, arguments: tuple[Any, ...], why: str
) -> None:
    assert str(called(resources, target, arguments, (FLOATS, np.ones((3, 1), np.float32)))).startswith(why)


@pytest.mark.parametrize(
    "text", [b"no JSON", b"[]", b"{}", b'{"calls": [[1, 2]], "outputs": []}', b'{"calls": 3, "outputs": []}', b"\xff"]
)
def test_calls_that_are_damaged_are_no_evidence(lowered: LoweredProgram, resources: Resources, text: bytes) -> None:
    blob = resources.store.put_bytes(text)
    with pytest.raises(EvidenceError, match=rf"^blob {blob.sha256} is no reference graph: "):
        read(resources, blob, lowered.methods[0].reference_constants)


def test_constants_that_are_damaged_are_no_evidence(lowered: LoweredProgram, resources: Resources) -> None:
    blob = resources.store.put_bytes(b"no tensors")
    with pytest.raises(EvidenceError, match=rf"^blob {blob.sha256} is not a safetensors file: "):
        read(resources, lowered.methods[0].reference_calls, blob)


def read(resources: Resources, calls: Blob, constants: Blob) -> None:
    resources.workers.call("compare", graphs.read, calls, constants, resources.store)
