"""ExecuTorch's own program of a language model, which was compiled elsewhere, runs in the runner's loop."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from qnnsweep.tasks.models.stories import PROMPT

if TYPE_CHECKING:
    from tests.toolchain.conftest import StartRunner

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

PROGRAM = Path(__file__).parents[1] / "data" / "llm" / "stories260k_hybrid_llama_qnn.pte"
CONTEXT, LAYERS, STEPS = 128, 5, 12


def test_the_tokens_of_executorchs_program_are_those_that_the_model_writes_in_floats(
    start_runner: StartRunner, tmp_path: Path
) -> None:
    def file(name: str, array: Any) -> str:
        (tmp_path / name).write_bytes(array.tobytes())
        return name

    caches = [
        *[file("keys.raw", np.full((1, 4, 8, CONTEXT - 1), 128, np.uint8))] * LAYERS,
        *[file("values.raw", np.full((1, 4, CONTEXT - 1, 8), 128, np.uint8))] * LAYERS,
    ]
    steps = []
    for number in range(STEPS):
        mask = np.zeros((1, 1, 1, CONTEXT), np.uint16)
        mask[..., -1] = mask[..., :number] = 65535
        position = file(f"position_{number}.raw", np.array([[number]], np.int32))
        token = file("begin.raw", np.array([[1]], np.int32)) if number == 0 else None
        inputs = [token, file(f"mask_{number}.raw", mask), position, *(caches if number == 0 else [None] * 2 * LAYERS)]
        steps.append({"method": "kv_forward", "inputs": inputs, "keep": None, "dump": False})
    states = [
        {"method": "kv_forward", "output": 1 + cache, "to_method": "kv_forward", "input": 3 + cache}
        | {"update": "append", "axis": 3 if cache < LAYERS else 2}
        for cache in range(2 * LAYERS)
    ]
    plan = {"links": states, "tokens": [{"method": "kv_forward", "output": 0, "input": 0}], "sequences": [steps]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    ran = start_runner(tmp_path, PROGRAM.read_bytes(), [], "--plan_path=plan.json")
    assert (ran.exit_code, len(re.findall("1 inference took", ran.stdout))) == (0, STEPS), ran.stderr
    scores = [np.frombuffer(ran.outputs[f"output_0_{step}_0.raw"], np.uint16) for step in range(STEPS)]
    assert [int(row.argmax()) for row in scores] == [*PROMPT[1 : STEPS + 1]]
