"""Any classifier of torchvision and timm can be built. Without the extra `zoo`, the message says what to install."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models import zoo
from qnnsweep.tasks.models.photographs import photographs
from qnnsweep.tasks.models.random_weights import LOGIT_SPREAD

CALL = """
import sys

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.models import zoo
from qnnsweep.tasks.models.photographs import photographs
from qnnsweep.tasks.models.random_weights import LOGIT_SPREAD

sys.modules["torchvision"] = None  # Python's documented way to make an import fail
try:
    getattr(zoo, sys.argv[1])(sys.argv[2], size=32, mean=[0.0] * 3, std=[1.0] * 3)
except RequestError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("factory", "architecture"), [("torchvision_classifier", "mobilenet_v2"), ("timm_classifier", "mobilevitv2_100")]
)
def test_without_the_extra_the_message_says_what_to_install(factory: str, architecture: str) -> None:
    argv = [sys.executable, "-c", CALL, factory, architecture]
    printed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    assert printed == (
        f"model {architecture} needs the optional extra zoo "
        "(torchvision: import of torchvision halted; None in sys.modules): pip install 'qnnsweep[zoo]'"
    )


PHOTOGRAPHS: dict[str, Any] = {"size": 64, "mean": [127.0] * 3, "std": [64.0] * 3}


@pytest.mark.parametrize(
    ("factory", "architecture"),
    [
        (zoo.torchvision_classifier, "squeezenet1_1"),  # its last layer is a convolution
        (zoo.torchvision_classifier, "googlenet"),  # it has auxiliary heads
        (zoo.torchvision_classifier, "mnasnet0_5"),
        (zoo.timm_classifier, "test_byobnet"),
        (zoo.timm_classifier, "test_nfnet"),
    ],
)
def test_a_classifier_with_random_weights_has_scores_that_differ(
    factory: Callable[..., torch.nn.Module], architecture: str
) -> None:
    model = factory(architecture, **PHOTOGRAPHS)
    samples = photographs(zoo.CALIBRATION_PHOTOGRAPHS, split="calibration", **PHOTOGRAPHS)
    scores = model(torch.cat([sample["inputs"]["x"] for sample in samples]))
    assert scores.shape == (4, 1000)
    torch.testing.assert_close(scores.std(dim=-1).mean().item(), LOGIT_SPREAD, rtol=1e-4, atol=0)
    assert not [name for name, _ in model.named_modules() if "aux" in name.lower()]


@pytest.mark.parametrize(
    ("factory", "architecture", "message"),
    [
        (
            zoo.torchvision_classifier,
            "squeezenet_1",
            "no such classifier in torchvision.models; did you mean squeezenet1_1?",
        ),
        (zoo.torchvision_classifier, "fcn_resnet50", "no such classifier in torchvision.models; "),
        (zoo.timm_classifier, "mobilevitv2_101", "no such classifier in timm; did you mean mobilevitv2_100 or "),
    ],
)
def test_the_message_about_an_unknown_architecture_names_the_nearest(
    factory: Callable[..., torch.nn.Module], architecture: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        factory(architecture, **PHOTOGRAPHS)
    assert str(caught.value).startswith(f"model.arguments.architecture={architecture}: {message}")
