"""Models that change themselves or their inputs are refused at export, with the user's line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from changing_models import AddsToAView, AssignsASlice, Chains, FillsAll, FillsAView

from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import check_model, export_model
from qnnsweep.tasks.toolchain.writes import lost_writes

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns of side effects, and of classes of its own

DECLARE = "make it an input and an output of the model, and declare it in model.states (docs/models.md)"
DEPEND = "so that its outputs depend on earlier calls"
AGAIN = "gives another result when it is called again with the same inputs"
DRAWS = "because it draws random numbers at {}; switch dropout off, or make the random numbers an input of the model"
REFUSED = {
    "Accumulates": (f"changes its buffer memory in forward at `self.memory.mul_(0.5).add_(x)`, {DEPEND}; {DECLARE}"),
    "WritesACache": (f"changes its buffer memory in forward at `self.memory[1:2] = x[1:2]`, {DEPEND}; {DECLARE}"),
    "Replaces": f"{AGAIN}, because forward changes self.memory at `self.memory = self.memory * 0.5 + x`; {DECLARE}",
    "CountsInPython": f"{AGAIN}, because forward changes self.calls at `self.calls += 1`; {DECLARE}",
    "Trains": (
        "computes with batch statistics, as in training at `return functional.batch_norm(h, n.running_mean, "
        "n.running_var, training=True)`: each call changes norm.running_mean, norm.running_var; call eval() on the "
        "module, or pass training=False"
    ),
    "DropsOut": f"{AGAIN}, {DRAWS.format('`return functional.dropout(self.linear(x), 0.5, training=True)`')}",
    "AddsNoise": f"{AGAIN}, {DRAWS.format('`return self.linear(x + torch.randn_like(x))`')}",
    "ChangesItsInput": (
        "changes its input x at `x += 1`; compute a new tensor instead, such as x = x + 1 in place of x += 1"
    ),
}
UNCHANGED = ("CountsCalls", "OverwritesABuffer", "DrawsButDoesNotUse", "Attends")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "artifacts")


def config(kind: str) -> ModelConfig:
    return ModelConfig(
        name=kind,
        factory="changing_models:build",
        arguments={"kind": kind},
        inputs=[InputConfig(name="x", shape=[4, 8])],
        evaluation=DataConfig(source="changing_models:samples", count=2),
    )


def exported(kind: str, store: Store) -> ExportedModel:
    return export_model(config(kind), store)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_changes_itself_or_its_input_is_refused_with_the_line(kind: str, store: Store) -> None:
    with pytest.raises(RequestError) as raised:
        exported(kind, store)
    message = str(raised.value)
    head, _, tail = message.partition(" (changing_models.py:")
    assert tail[:1].isdigit()
    rest = tail.partition(")")[2]
    head = head.partition(" (")[0] + head.partition(" dB)")[2] if " dB)" in head else head
    assert head + rest == f"the model {kind} {REFUSED[kind]}"


@pytest.mark.parametrize("kind", UNCHANGED)
def test_a_model_whose_outputs_do_not_depend_on_earlier_calls_is_exported(kind: str, store: Store) -> None:
    assert [method.lost_writes for method in exported(kind, store).methods] == [None]


@pytest.mark.parametrize("kind", ["Replaces", "CountsInPython", "DropsOut"])
def test_a_plan_that_is_checked_finds_a_second_call_that_differs(kind: str) -> None:
    with pytest.raises(RequestError, match=f"the model {kind} {AGAIN}"):
        check_model(config(kind))


def test_a_program_that_is_another_function_than_the_module_is_refused(store: Store) -> None:
    with pytest.raises(RequestError) as raised:
        exported("BranchesOnTheCompiler", store)
    assert str(raised.value) == (
        "the program that torch.export makes of the model BranchesOnTheCompiler is another function (0.0 dB on "
        "sample 0, where nothing is quantized); look for branches on Python values in forward, such as counters, "
        "torch.compiler.is_compiling() or attributes that change"
    )


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (AssignsASlice(), "`h[:, 2:5] = 0.25`"),
        (FillsAView(), "`h[:2].masked_fill_(self.mask, 0.5)`"),
        (AddsToAView(), "`first += 1.0`"),
        (FillsAll(), None),
        (Chains(), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_only_in_place_operations_whose_memory_is_read_otherwise_can_be_lost(
    module: torch.nn.Module, line: str | None
) -> None:
    program = torch.export.export(module.eval(), (torch.ones(4, 8),), strict=True)
    assert [write.partition(" (changing_models.py:")[0] for write in lost_writes(program.graph)] == [line][
        : line is not None
    ]
