"""EfficientNet-Lite0: its weights are pretrained, and the photographs are preprocessed as in its training."""

from __future__ import annotations

from qnnsweep.tasks.models.efficientnet import efficientnet_lite0
from qnnsweep.tasks.models.photographs import photographs


def test_it_predicts_a_daisy_a_palace_an_espresso_and_a_cat() -> None:
    model = efficientnet_lite0()
    samples = photographs(4, split="evaluation", size=224, mean=[127.0] * 3, std=[128.0] * 3)
    classes = {sample.get("name"): int(model(sample["inputs"]["x"]).argmax()) for sample in samples}
    # ImageNet: 985 daisy (it has no dahlia), 698 palace, 967 espresso, 282 tiger cat.
    assert classes == {"flower": 985, "china": 698, "coffee": 967, "chelsea": 282}


def test_it_is_in_eval_mode_and_its_weights_are_marked_as_pretrained() -> None:
    model = efficientnet_lite0()
    assert (model.training, model.weights_origin) == (False, "pretrained")
