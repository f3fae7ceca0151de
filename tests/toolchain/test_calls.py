"""The operator calls of exported programs."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from qnnsweep.conf.models import DataConfig, InputConfig, ModelConfig
from qnnsweep.tasks.records import OperatorCall
from qnnsweep.tasks.toolchain.calls import operator_calls
from qnnsweep.tasks.toolchain.model_calls import call_cases, call_module, call_samples

pytestmark = pytest.mark.toolchain


class Net(nn.Module):
    """Two equal layers, an operator with a list of tensors, and one with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.layers(x), x], dim=1)
        values, indices = both.relu_().max(dim=1)
        return values, indices


def net() -> nn.Module:
    return Net()


def samples(count: int) -> list[dict[str, object]]:
    return [{"inputs": {"x": torch.full((2, 4), float(number + 1))}} for number in range(count)]


def model() -> ModelConfig:
    return ModelConfig(
        name="net",
        factory=f"{__name__}:net",
        inputs=[InputConfig(name="x", shape=[2, 4])],
        calibration=DataConfig(source=f"{__name__}:samples", count=3),
        evaluation=DataConfig(source=f"{__name__}:samples", count=1),
    )


def test_equal_calls_are_one_record_with_their_number() -> None:
    torch.manual_seed(0)
    calls = operator_calls(torch.export.export(Net().eval(), (torch.ones(2, 4),), strict=True))
    assert calls == (
        OperatorCall(
            text="aten.linear.default(float32[2, 4], constant float32[4, 4], constant float32[4])",
            count=2,
            module_path="layers.0",
        ),
        OperatorCall(text="aten.cat.default([float32[2, 4], float32[2, 4]], dim=1)", count=1, module_path=""),
        OperatorCall(text="aten.relu_.default(float32[2, 8])", count=1, module_path=""),
        OperatorCall(text="aten.max.dim(float32[2, 8], dim=1) -> [0, 1]", count=1, module_path=""),
    )


def test_every_distinct_call_of_a_model_is_a_case_with_the_tensors_that_it_gets_there() -> None:
    config = model()
    cases = list(call_cases(config))
    assert [(case["name"], case["operator"], case["skipped"]) for case in cases] == [
        ("linear", "aten.linear.default", None),
        ("cat", "aten.cat.default", None),
        ("relu_", "aten.relu_.default", None),
        ("max_1", "aten.max.dim", None),
    ]
    assert [list(case["inputs"]) for case in cases] == [["input_0"], ["input_0", "input_1"], ["input_0"], ["input_0"]]
    assert cases[1]["inputs"]["input_1"].tolist() == [[1.0] * 4] * 2
    second = list(call_samples(2, model=config, number=1, split="calibration"))[1]
    assert second["inputs"]["input_1"].tolist() == [[2.0] * 4] * 2


def test_the_cases_of_a_model_compute_together_what_the_model_computes() -> None:
    config = model()
    torch.manual_seed(0)
    whole = Net().eval()
    (linear, *_), cat, relu, largest = (
        [call_module(config, number), next(iter(call_samples(1, model=config, number=number, split="evaluation")))]
        for number in range(4)
    )
    x = torch.ones(2, 4)
    with torch.no_grad():
        assert torch.equal(linear(x), whole.layers[0](x))
        joined = cat[0](*cat[1]["inputs"].values())
        assert torch.equal(joined, torch.cat([whole.layers(x), x], dim=1))
        before = joined.clone()
        positive = relu[0](joined)
        assert torch.equal(joined, before), "the operator in the case does not change its input"
        assert torch.equal(cast(tuple[Tensor, Tensor], largest[0](positive))[0], whole(x)[0])
