"""The QuantRecipe of a scheme quantizes a model as the scheme does, without qnnsweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from qnnsweep.conf.schemes import OverridePrecision, SchemeConfig, SchemeOverride
from qnnsweep.tasks.records import LoweredProgram
from qnnsweep.tasks.results.quant_recipe import quant_recipe
from qnnsweep.tasks.toolchain.backends.select import backend_of
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import read_samples

import llama_script  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]  # torch and ExecuTorch warn at import

ROOT = Path(__file__).parents[2]
SAMPLES = 8


def scheme(*overrides: SchemeOverride) -> SchemeConfig:
    return SchemeConfig(name="8a8w", quant_dtype="8a8w", overrides=list(overrides))


OVERRIDES = {
    "none": (),
    "weights": (SchemeOverride(node="input_1", quant_dtype="8a4w"),),
    "weights of one type": (
        SchemeOverride(node="input_1", operator="conv2d", quant_dtype="8a4w"),
        SchemeOverride(node="input_3", operator="relu", range=[0.0, 1.5]),
    ),
    "range": (SchemeOverride(node="input_3", range=[0.0, 1.5]),),
    "range of the input": (SchemeOverride(input="image", range=[-0.5, 3.0]),),
    "16-bit weights with one scale": (SchemeOverride(node="input_1", quant_dtype="16a16w", per_channel=False),),
    "blocks": (SchemeOverride(node="res", quant_dtype="16a4w_block", block_size=[1, 16]),),
    "activations and a symmetric range": (
        SchemeOverride(node="res", quant_dtype="16a8w", symmetric=True),
        SchemeOverride(node="input_4", range=[-3.0, 3.0], per_channel=False),
    ),
}


BLOCKS = SchemeConfig(
    name="16a4w_block", quant_dtype="16a4w_block", block_size={"conv2d": [1, 16, 1, 1], "linear": [1, 16]}
)
SCHEMES = {name: scheme(*overrides) for name, overrides in OVERRIDES.items()} | {"blocks of all weights": BLOCKS}


@pytest.mark.parametrize("asked", SCHEMES.values(), ids=SCHEMES)
def test_a_recipe_quantizes_as_the_scheme_does(
    asked: SchemeConfig, lowered: LoweredProgram, resources: Resources
) -> None:
    from executorch.backends.qualcomm.export_utils import make_quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    exported = lowered.quantized.exported
    assert exported.methods[0].calibration is not None
    samples = read_samples(resources.store, exported.methods[0].calibration, ["image"], SAMPLES)
    written: dict[str, Any] = {}
    exec(quant_recipe(asked, "A recipe of a test."), written)  # the file as a user would run it
    by_recipe = make_quantizer()
    by_recipe.set_recipe(written["recipe"]())

    def answers(quantizer: Any) -> list[torch.Tensor]:
        module = load_program(resources.store, exported.methods[0].program).module()
        prepared = prepare_pt2e(module, quantizer)
        for sample in samples:
            prepared(*sample)
        converted = convert_pt2e(prepared)
        return [converted(*sample) for sample in samples]

    module = load_program(resources.store, exported.methods[0].program).module()
    of_scheme = answers(backend_of("qnn").compiler(asked, None).quantizer(asked, module))
    assert all(map(torch.equal, answers(by_recipe), of_scheme))
    if asked != (plain := scheme()):
        unlike = answers(backend_of("qnn").compiler(plain, None).quantizer(plain, module))
        assert not all(map(torch.equal, of_scheme, unlike)), "the scheme has an effect"


def test_a_recipe_quantizes_in_the_llama_script_of_executorch(resources: Resources) -> None:
    overrides = (
        SchemeOverride(node="conv2d_2", quant_dtype="16a4w"),
        SchemeOverride(node="conv2d_3", quant_dtype="16a4w_block", block_size=[1, 16, 1, 1]),
        SchemeOverride(node="add", range=[-8.0, 8.0]),
    )
    asked = SchemeConfig(name="16a8w", quant_dtype="16a8w", overrides=[*overrides])
    written = quant_recipe(asked, "A recipe of a test.")
    weights = resources.workers.call("quantize", llama_script.quantized_weights, written).value
    per_channel, bits_8, bits_4 = "per channel", 254, 14
    assert [(weight.module, weight.scales, weight.steps) for weight in weights] == [
        ("conv", per_channel, bits_8),
        ("w1_conv", per_channel, bits_8),
        ("w2_conv", per_channel, bits_8),
        ("w3_conv", per_channel, bits_8),
        ("wk_conv", per_channel, bits_8),
        ("wo_conv", "per block", bits_4),
        ("wq_conv", per_channel, bits_8),
        ("wv_conv", per_channel, bits_4),
    ]


def test_what_a_recipe_cannot_express_is_a_comment() -> None:
    cpu = SchemeOverride(node="res", precision=OverridePrecision.cpu)
    by_type = SchemeOverride(operator="conv2d", symmetric=True)
    inputs = SchemeOverride(input="*", range=[-1.0, 1.0])
    of_method = SchemeOverride(method="decode", node="res", range=[-1.0, 1.0])
    asked = (cpu, by_type, inputs, of_method)
    text = quant_recipe(scheme(*asked), "A recipe.")
    comments = "".join(f"# {override}\n" for override in asked)
    assert text.endswith(f"# A QuantRecipe cannot express these overrides of the scheme:\n{comments}")


def test_a_recipe_passes_the_linter(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(quant_recipe(SCHEMES["activations and a symmetric range"], "A recipe."))
    linter = [sys.executable, "-m", "ruff", "check", f"--config={ROOT / 'pyproject.toml'}", "--no-cache", str(file)]
    checked = subprocess.run(linter, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "All checks passed!\n")
