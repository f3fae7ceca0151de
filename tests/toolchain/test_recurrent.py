"""Recurrent layers and convolutions without a batch: exported in operators that a quantizer and a compiler know."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from recurrent_models import build, samples

from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.export import export_model
from qnnsweep.tasks.toolchain.nodes import module_of
from qnnsweep.tasks.toolchain.saved_program import load_program
from qnnsweep.tasks.toolchain.tensors import read_tensors
from tests.program import Program

if TYPE_CHECKING:
    from qnnsweep.tasks.records import ExportedMethod

# torch.export warns of classes of its own, and of the weights that a recurrent layer lists in an attribute.
pytestmark = pytest.mark.filterwarnings("ignore")

LAYERS: dict[str, dict[str, Any]] = {
    "LSTM": {"kind": "layer", "layer": "LSTM"},
    "LSTM of two layers in both directions": {
        "kind": "layer", "layer": "LSTM", "num_layers": 2, "bidirectional": True,
    },
    "LSTM without the strict mode": {"kind": "layer", "layer": "LSTM", "structured": True},
    "GRU": {"kind": "layer", "layer": "GRU"},
    "RNN": {"kind": "layer", "layer": "RNN"},
    "LSTMCell": {"kind": "cell", "layer": "LSTMCell"},
    "GRUCell": {"kind": "cell", "layer": "GRUCell"},
    "RNNCell": {"kind": "cell", "layer": "RNNCell"},
}  # fmt: skip
KNOWN = {"linear", "sigmoid", "tanh", "mul", "add", "sub"}
"""The operators of steps that compute; the others move values."""
MOVES = {
    "zeros", "select", "unbind", "transpose", "unsqueeze", "squeeze", "split", "cat", "slice", "flip", "stack",
}  # fmt: skip


def exported(arguments: dict[str, Any], folder: Path, **of_data: Any) -> tuple[Store, ExportedMethod]:
    data = DataConfig(source="recurrent_models:samples", arguments=of_data, count=2)
    config = ModelConfig(
        name="net", factory="recurrent_models:build", arguments=arguments, calibration=data, evaluation=data
    )
    store = Store(folder / "artifacts")
    return store, export_model(config, store).methods[0]


@pytest.mark.parametrize("kind", LAYERS)
def test_a_recurrent_layer_is_exported_step_by_step(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, method = exported(LAYERS[kind], tmp_path)
    program = load_program(store, method.program)
    called = {
        str(node.target).removeprefix("aten.").split(".")[0]
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    }
    assert called - MOVES <= KNOWN
    assert {"linear", "tanh"} <= called
    assert {call.module_path for call in method.calls} >= {"layer", "head"}
    eager, module = read_tensors(store, method.outputs_eager), build(**LAYERS[kind]).eval()
    for number, sample in enumerate(samples(2)):
        answer = module(sample["inputs"]["x"])
        torch.testing.assert_close(eager[f"{number}/0"], answer if isinstance(answer, torch.Tensor) else answer.y)


def test_a_convolution_without_a_batch_gets_a_batch_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, method = exported({"kind": "unbatched"}, tmp_path, batched=False)
    program = load_program(store, method.program)
    shapes = [
        (str(node.target), [*node.meta["val"].shape]) for node in program.graph.nodes if node.op == "call_function"
    ]
    assert shapes == [
        ("aten.unsqueeze.default", [1, 8, 12]),
        ("aten.conv1d.default", [1, 6, 10]),
        ("aten.squeeze.dim", [6, 10]),
        ("aten.relu.default", [6, 10]),
        ("aten.unsqueeze.default", [1, 6, 10]),
        ("aten.conv_transpose1d.default", [1, 4, 12]),
        ("aten.squeeze.dim", [4, 12]),
    ]
    assert {call.module_path for call in method.calls} == {"0", "1", "2"}


def test_only_the_biases_of_the_layer_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, method = exported({"kind": "tied"}, tmp_path)
    program = load_program(store, method.program)
    linears = [node for node in program.graph.nodes if node.target is torch.ops.aten.linear.default]
    biases = {path: [node.args[2] for node in linears if module_of(node) == path] for path in ("layer", "head", "")}
    assert [len(biases["layer"]), len({*biases["layer"]})] == [4, 4]  # of the inputs at once, and of steps 2 to 4
    assert [len(biases[path]) for path in ("head", "")] == [2, 2]
    assert [len({*biases[path]}) for path in ("head", "")] == [1, 1]


CALL = """
import json, qnnsweep
from recurrent_models import build, samples
found = {}
for name, arguments, batched in KINDS:
    given = [sample["inputs"] for sample in samples(8, batched)]
    result = qnnsweep.debug(
        build(**arguments), given, scheme="8a8w", name=name, artifacts=FOLDER, progress=False,
        overrides=["measure.cures=0"],
    )
    found[name] = [result.passed, result.worst_snr_db]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.toolchain
def test_they_are_quantized_and_computed_as_they_are_designed(served_program: Program, tmp_path: Path) -> None:
    kinds = [
        ("lstm", LAYERS["LSTM"], True),
        ("structured", LAYERS["LSTM without the strict mode"], True),
        ("gru_cell", LAYERS["GRUCell"], True),
        ("unbatched", {"kind": "unbatched"}, False),
    ]
    values = f"FOLDER, KINDS = {str(tmp_path)!r}, {kinds!r}"
    ran = served_program.python(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{values}\n{CALL}")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert {name: passed for name, (passed, _) in found.items()} == dict.fromkeys(found, True)
    assert {name: snr_db > 20 for name, (_, snr_db) in found.items()} == dict.fromkeys(found, True), found
