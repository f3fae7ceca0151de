"""Pools that are called without a stride, which is then the size of the kernel."""

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

class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(3, 8, 3)

    def forward(self, x):
        h = F.avg_pool3d(self.conv(x).relu(), 2).mean(2)
        return F.max_pool1d(F.max_pool2d(h, (2, 1)).flatten(2), 2)

samples = [torch.randn(1, 3, 6, 18, 18) for _ in range(3)]
run = qnnsweep.debug(Pooled(), samples, scheme=["fp16", "8a8w"], artifacts=FOLDER, progress=False)
print(json.dumps(run.cells.set_index("scheme")[["outcome", "final_snr_db"]].to_dict("index")))
"""


def test_they_are_compiled_and_right(served_program: Program, tmp_path: Path) -> None:
    ran = served_program.python(f"FOLDER = {str(tmp_path)!r}\n{LINES}")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert {scheme: row["outcome"] for scheme, row in found.items()} == {"fp16": "passed", "8a8w": "passed"}
    assert found["fp16"]["final_snr_db"] > 50
    assert found["8a8w"]["final_snr_db"] > 25
