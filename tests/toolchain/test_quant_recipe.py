"""The QuantRecipe of a scheme quantizes a model as the scheme does, without qnnsweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from tasks.records import LoweredProgram
from tasks.results.quant_recipe import quant_recipe
from tasks.toolchain.backends.select import backend_of
from tasks.toolchain.saved_program import load_program
from tasks.toolchain.tensors import read_samples

if TYPE_CHECKING:
    from flows.resources import Resources

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]  # torch and ExecuTorch warn at import

SAMPLES = 8


def scheme(*overrides: SchemeOverride) -> SchemeConfig:
    return SchemeConfig(name="8a8w", quant_dtype="8a8w", overrides=list(overrides))


OVERRIDES = {
    "none": (),
    "weights": (SchemeOverride(node="input_1", quant_dtype="8a4w"),),
    "range": (SchemeOverride(node="input_3", range=[0.0, 1.5]),),
    "16-bit weights with one scale": (SchemeOverride(node="input_1", quant_dtype="16a16w", per_channel=False),),
    "activations and a symmetric range": (
        SchemeOverride(node="res", quant_dtype="16a8w", symmetric=True),
        SchemeOverride(node="input_4", range=[-3.0, 3.0], per_channel=False),
    ),
}


@pytest.mark.parametrize("overrides", OVERRIDES.values(), ids=OVERRIDES)
def test_a_recipe_quantizes_as_the_scheme_does(
    overrides: tuple[SchemeOverride, ...], lowered: LoweredProgram, resources: Resources
) -> None:
    from executorch.backends.qualcomm.export_utils import make_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    exported, asked = lowered.quantized.exported, scheme(*overrides)
    assert exported.calibration is not None
    samples = read_samples(resources.store, exported.calibration, ["image"], SAMPLES)
    written: dict[str, Any] = {}
    exec(quant_recipe(asked, "A recipe of a test."), written)  # the file as a user would run it
    by_recipe = make_quantizer()
    by_recipe.set_recipe(written["recipe"]())

    def answers(quantizer: Any) -> list[torch.Tensor]:
        module = load_program(resources.store, exported.program).module()
        prepared = prepare_pt2e(module, quantizer)
        for sample in samples:
            prepared(*sample)
        converted = convert_pt2e(prepared)
        return [converted(*sample) for sample in samples]

    module = load_program(resources.store, exported.program).module()
    of_scheme = answers(backend_of("qnn").compiler(asked, None).quantizer(asked, module))
    assert all(map(torch.equal, answers(by_recipe), of_scheme))
    if overrides:
        plain = scheme()
        unlike = answers(backend_of("qnn").compiler(plain, None).quantizer(plain, module))
        assert not all(map(torch.equal, of_scheme, unlike)), "the overrides have an effect"


def test_what_a_recipe_cannot_express_is_a_comment() -> None:
    cpu = SchemeOverride(node="res", precision=OverridePrecision.cpu)
    by_type = SchemeOverride(operator="conv2d", symmetric=True)
    text = quant_recipe(scheme(cpu, by_type), "A recipe.")
    assert text.endswith(f"# A QuantRecipe cannot express these overrides of the scheme:\n# {cpu}\n# {by_type}\n")
