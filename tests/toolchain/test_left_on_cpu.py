"""Operators that ExecuTorch leaves on the CPU, with constants beside them; one that its builder cannot build, and
assertions, which no runtime has.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

LINES = """
import json
import qnnsweep, torch
from torch import nn
from torch.nn import functional as F

class OnCpu(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.left, self.right = nn.Conv2d(3, 4, 3), nn.Linear(36, 16), nn.Linear(36, 16)

    def forward(self, x):
        h = self.conv(F.pad(x, (1, 1, 1, 1), mode="replicate")).flatten(2)
        left, right = self.left(h), self.right(h)
        similar = F.cosine_similarity(left, right, dim=-1)
        classes = F.one_hot(left.argmax(-1), 16).float() * left
        return similar, torch.tril(left @ right.transpose(1, 2)), F.logsigmoid(left), F.hardshrink(right), classes

generator = torch.Generator().manual_seed(1)
samples = [torch.randn(1, 3, 6, 6, generator=generator) for _ in range(6)]
run = qnnsweep.debug(OnCpu(), samples, scheme=["fp16", "8a8w"], artifacts=FOLDER, progress=False,
    overrides=["measure.cures=0"])
refusals = [text for row in run.table("delegation").refusals for text in row]
print(json.dumps({
    "cells": run.cells.set_index("scheme")[["outcome", "final_snr_db"]].to_dict("index"),
    "unbuilt": [text for text in refusals if "ExecuTorch cannot build it" in text],
}))
"""


def test_the_program_is_compiled_and_right(served_program: Program, tmp_path: Path) -> None:
    ran = served_program.python(f"FOLDER = {str(tmp_path)!r}\n{LINES}")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert {scheme: row["outcome"] for scheme, row in found["cells"].items()} == {"fp16": "passed", "8a8w": "passed"}
    assert found["cells"]["fp16"]["final_snr_db"] > 45
    assert found["cells"]["8a8w"]["final_snr_db"] > 10
    assert found["unbuilt"], "ExecuTorch builds an index with several dimensions now"
