"""Copies of programs share their tensors and the ancestry of their nodes, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch.export import ExportedProgram, export
from torch.fx.traceback import NodeSource

from qnnsweep.tasks.toolchain.shared_copies import share_sources, sharing_tensors

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # PyTorch's own copies


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))
        self.table = torch.arange(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale + self.table


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share in copies during a test."""
    with monkeypatch.context() as patch, sharing_tensors():
        patch.setattr(NodeSource, "__deepcopy__", None, raising=False)  # what is set is removed afterwards
        share_sources()
        yield


@pytest.fixture(name="program")
def exported_program() -> ExportedProgram:
    return export(Scaled().eval(), (torch.ones(1, 3),)).run_decompositions({})


def test_a_copy_computes_the_same_with_the_same_tensors(program: ExportedProgram) -> None:
    copied = copy.deepcopy(program)
    held = {**program.state_dict, **program.constants}
    assert held.keys() == {"layer.weight", "layer.bias", "scale", "table"}
    assert all({**copied.state_dict, **copied.constants}[name] is value for name, value in held.items())
    x = torch.tensor([[1.0, -2.0, 0.5]])
    assert torch.equal(copied.module()(x), program.module()(x))


def test_what_is_changed_in_a_copy_is_not_changed_in_the_program(program: ExportedProgram) -> None:
    before = str(program)
    copied = copy.deepcopy(program)
    copied.state_dict["scale"] = torch.zeros(2)
    copied.constants.clear()
    copied.graph_signature.input_specs.pop()
    last = next(node for node in reversed(copied.graph.nodes) if node.op == "call_function")
    last.replace_all_uses_with(last.args[0])
    copied.graph.erase_node(last)
    assert str(program) == before
    assert program.state_dict["scale"].tolist() == [2.0, 3.0]
    assert list(program.constants) == ["table"]


def test_the_sources_of_a_node_are_the_same_after_a_copy_and_the_list_is_another(program: ExportedProgram) -> None:
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    sources = node.meta["from_node"]
    assert sources
    copied = copy.deepcopy(sources)
    assert copied is not sources
    assert all(ours is theirs for ours, theirs in zip(copied, sources, strict=True))


def test_outside_of_the_context_a_copy_has_tensors_of_its_own(program: ExportedProgram) -> None:
    with sharing_tensors():  # within that of the fixture
        pass
    assert copy.deepcopy(program).state_dict["scale"] is program.state_dict["scale"]
    before = vars(ExportedProgram)["__deepcopy__"]
    del ExportedProgram.__deepcopy__  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with sharing_tensors():
            pass
        assert copy.deepcopy(program).state_dict["scale"] is not program.state_dict["scale"]
    finally:
        ExportedProgram.__deepcopy__ = before  # pyright: ignore[reportAttributeAccessIssue]


def test_a_tensor_that_was_copied_before_its_program_is_the_copy_there_too(program: ExportedProgram) -> None:
    scale, copied = copy.deepcopy((program.state_dict["scale"], program))
    assert scale is not program.state_dict["scale"]
    assert copied.state_dict["scale"] is scale
