"""What cannot be exported is refused with the user's line and with what to do, which works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.flows.cells.graph import lowering_options
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.export import export
from qnnsweep.tasks.lower import lower
from qnnsweep.tasks.quantize import quantize
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import check_model, export_model
from qnnsweep.tasks.toolchain.refusals import check_samples
from qnnsweep.tasks.toolchain.user_code import usable_module

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

FIXED = "a compiled program runs the same operators on the same shapes for all inputs"
BOTH = f"{FIXED}; compute both results and choose with torch.where, such as h = torch.where(h.mean() > 0, h * 2, h)"
REFUSED = {
    "Branches": f"the model Branches decides by the values of a tensor at `if h.mean() > 0:`: {BOTH}",
    "Loops": f"the model Loops decides by the values of a tensor at `while x.sum() < 1000:`: {BOTH}",
    "TakesANumber": (
        "the model TakesANumber computes with a number that it reads out of a tensor at `return self.linear(x) * "
        f"x.max().item()`: {FIXED}; compute with the tensor itself, without item(), int(), float() or tolist()"
    ),
    "Selects": (
        "the model Selects makes a tensor whose size depends on the values of another at `return self.linear(x)[x > "
        f"0.5]`: {FIXED}; keep all elements and choose with torch.where, or take a fixed number of them with torch.topk"
    ),
    "Suppresses": (  # the tests have a CUDA build of torchvision, and PyTorch for the CPU
        "the model Suppresses calls a compiled operator of torchvision at `return h[torchvision.ops.nms(h[:, :4], "
        "h[:, 4], 0.5)]`: it is not loaded with this PyTorch, and no backend of ExecuTorch has it; give the part "
        "before it, such as a module of a detector whose forward is self.head([*self.backbone(x).values()])"
    ),
    "TransformsToComplex": (
        "the model TransformsToComplex computes with complex numbers at `return torch.fft.rfft(self.linear(x)).abs()`, "
        "which ExecuTorch has no operators for; compute with real and imaginary parts, as a Fourier transform by "
        "products with tables of cos and sin"
    ),
    "Inverts": (
        "the model Inverts solves or inverts a matrix at `return torch.linalg.inv(h.transpose(0, 1) @ h + "
        "torch.eye(8))`, which ExecuTorch has no operators for; compute it before the model, in the samples, or once "
        "in __init__ and register it as a buffer"
    ),
    "Misspells": (
        "the model Misspells cannot run on an evaluation sample: AttributeError: 'Misspells' object has no attribute "
        "'liner' at `return self.liner(x)  # type: ignore[operator]`; correct its forward, or the arguments of "
        "model.factory=untraceable_models:build"
    ),
}
NAN = (
    "the input x of sample 0 of the model TakesTheTensor has NaN, from which nothing can be calibrated or compared; "
    "leave the sample out, or replace the values, such as by torch.nan_to_num"
)
NUMPY = "compute with PyTorch, and not with NumPy or SciPy, or do it before the model, in the samples"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "artifacts")


def config(kind: str) -> ModelConfig:
    data = DataConfig(source="untraceable_models:samples", count=2)
    return ModelConfig(
        name=kind, factory="untraceable_models:build", arguments={"kind": kind}, calibration=data, evaluation=data
    )


def refusal(kind: str, check: Callable[[ModelConfig], object]) -> tuple[str, bool]:
    """Return the message without the file and the line, and whether it had them."""
    with pytest.raises(RequestError) as raised:
        check(config(kind))
    message = str(raised.value)
    assert "\n" not in message
    head, mark, tail = message.partition(" (untraceable_models.py:")
    return head + tail.partition(")")[2], bool(mark) and tail[:1].isdigit()


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_without_a_program_for_all_inputs_is_refused_with_the_line_and_the_remedy(
    kind: str, store: Store
) -> None:
    assert refusal(kind, lambda model: export_model(model, store)) == (REFUSED[kind], True)


@pytest.mark.parametrize("kind", REFUSED)
def test_the_check_of_a_plan_says_the_same(kind: str) -> None:
    assert refusal(kind, check_model) == (REFUSED[kind], True)


def test_what_pytorch_cannot_trace_is_refused_with_its_words_and_a_remedy(store: Store) -> None:
    message, has_line = refusal("CallsNumPy", lambda model: export_model(model, store))
    assert has_line
    assert message.startswith(
        "torch.export cannot trace the model CallsNumPy at `return self.linear(torch.tensor(np.unwrap(x.numpy())))`: "
    )
    assert message.endswith(f"; {NUMPY}")


def test_a_sample_with_nan_is_refused_and_one_with_infinities_is_not(store: Store) -> None:
    model = config("TakesTheTensor")
    assert model.evaluation is not None
    data = replace(model.evaluation, arguments={"last": torch.nan})
    with pytest.raises(RequestError) as raised:
        export_model(replace(model, evaluation=data), store)
    assert str(raised.value) == NAN
    infinite = {"x": torch.tensor([-torch.inf, torch.inf]), "ids": torch.tensor([1])}
    check_samples("TakesTheTensor", [("sample 0", infinite)])


def test_weights_on_the_device_meta_are_refused() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(8, 4)
    with pytest.raises(RequestError) as raised:
        usable_module(module, "model: is")
    assert str(raised.value) == (
        "model: is a module without the values of weight and 1 more: they are on the device meta; create it on the "
        "CPU, or load its weights with assign=True"
    )


def test_what_only_the_other_mode_of_torch_export_traces_is_exported(store: Store) -> None:
    (method,) = export_model(config("WritesJson"), store).methods
    assert [call.module_path for call in method.calls] == ["linear", ""]


@pytest.mark.toolchain
@pytest.mark.parametrize(
    "kind", ["ChoosesWithWhere", "TakesTheTensor", "TakesTheLargest", "TransformsByTables", "InvertsAConstant"]
)
def test_the_remedies_are_compiled(kind: str, resources: Resources) -> None:
    ask = load(["scheme=8a8w", "soc=SM8650", "measure.dump_operators=false"]).cells[0].request
    tools: Any = {"store": resources.store, "workers": resources.workers}
    quantized = quantize(export(config(kind), "", **tools), ask.scheme, ask.backend.kind, **tools)
    assert lower(quantized, ask.soc, lowering_options(ask), **tools).methods[0].delegated_subgraphs > 0
