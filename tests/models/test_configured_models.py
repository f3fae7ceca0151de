"""Every model of conf/model/: its samples match its configured inputs, and its module computes outputs for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from qnnsweep.conf.load import load
from qnnsweep.conf.models import DataConfig, ModelConfig

SHIPPED = ("digits_cnn", "efficientnet_lite0", "minilm_l6")
ZOO = ("inception_v3", "mobilenet_v2", "mobilenet_v3_large", "mobilevit_v2", "vit_b_16")


def configured(name: str) -> ModelConfig:
    return load([f"model={name}"]).cells[0].request.model


def called(reference: str) -> Any:
    module, _, function = reference.partition(":")
    return getattr(import_module(module), function)


def samples(data: DataConfig | None) -> list[dict[str, Any]]:
    assert data is not None
    return list(called(data.source)(data.count, **data.arguments))


@pytest.mark.parametrize("name", SHIPPED + ZOO)
def test_the_samples_have_the_configured_shapes_and_dtypes(name: str) -> None:
    model = configured(name)
    assert (model.calibration is not None, model.evaluation is not None) == (True, True)
    expected = {config.name: (config.shape, f"torch.{config.dtype}") for config in model.inputs}
    for sample in samples(model.calibration) + samples(model.evaluation):
        assert {key: (list(value.shape), str(value.dtype)) for key, value in sample["inputs"].items()} == expected


@pytest.mark.parametrize("name", SHIPPED + ZOO)
def test_no_evaluation_sample_is_a_calibration_sample(name: str) -> None:
    model = configured(name)
    names = [{sample["name"] for sample in samples(data)} for data in (model.calibration, model.evaluation)]
    assert not names[0] & names[1]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_module_takes_its_inputs_by_the_configured_names_and_its_outputs_are_finite(name: str) -> None:
    model = configured(name)
    answer = called(model.factory)(**model.arguments)(**samples(model.evaluation)[0]["inputs"])
    assert bool(torch.isfinite(answer).all())
