"""The states of a model: what is refused, and where such a model cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qnnsweep.conf.load import load

if TYPE_CHECKING:
    from tests.conf.conftest import Refused

INPUTS = "inputs: [{name: x, shape: [1]}, {name: h, shape: [1]}]"
EVALUATION = "evaluation: {source: 'a.b:c'}"
METHODS = f"methods: [{{name: a, {INPUTS}}}, {{name: b, {INPUTS}}}]"
REFUSALS = {
    f"{EVALUATION}, states: [{{output: '0', input: h}}]": (
        "model.inputs=[]: a model with states states its inputs, each with a name, a shape and a dtype"
    ),
    f"{INPUTS}, {EVALUATION}, states: [{{output: '0', input: y}}]": (
        "model.states[0].input=y: no such input; one of h, x"
    ),
    f"{INPUTS}, {EVALUATION}, states: [{{method: a, output: '0', input: h}}]": (
        "model.states[0].method=a: no such method; null, for the model's only method"
    ),
    f"{METHODS}, {EVALUATION}, states: [{{method: a, output: '0', to_method: c, input: h}}]": (
        "model.states[0].to_method=c: no such method; one of a, b"
    ),
    f"{METHODS}, {EVALUATION}, states: [{{method: a, output: '0', input: h, update: put}}]": (
        "model.states[0].update=put: no such update; one of append, replace, ring, shift"
    ),
    f"{METHODS}, states: [{{method: a, output: '0', input: h}}]": (
        "model.evaluation=null: every comparison needs samples; set model.evaluation.source"
    ),
    f"{METHODS.replace('name: a,', 'name: a, ' + EVALUATION + ',')}, {EVALUATION}, states: []": (
        "model.methods[0].evaluation: set model.evaluation, because with model.states the samples are sequences of all "
        "methods"
    ),
    f"{INPUTS}, {EVALUATION}, driver: {{output: '0', input: x}}": (
        "model.driver: only valid with model.states, whose steps read the tokens"
    ),
    f"{INPUTS}, {EVALUATION}, states: [], driver: {{output: '0', input: z}}": (
        "model.driver.input=z: no such input; one of h, x"
    ),
}


@pytest.mark.parametrize(("keys", "line"), REFUSALS.items())
def test_a_wrong_state_is_refused_in_one_line(refused: Refused, mine: Path, keys: str, line: str) -> None:
    text = f"{{name: my_net, factory: 'my_package.nets:net', {keys}}}"
    (mine / "model" / "my_net.yaml").write_text(text)
    assert refused("scheme=fp16") == f"{line} (model my_net)"


def test_the_native_runner_cannot_run_a_model_with_states() -> None:
    native = ["device.runner=native", "device.native_folder=builds", "device.soc=SM8650", "soc=SM8650"]
    (cell,) = load(["model=tiny_llama", "scheme=fp16", *native]).cells
    assert cell.impossible == (
        "ExecuTorch's native runner has no loop for a model with states; use a device with runner=python"
    )
