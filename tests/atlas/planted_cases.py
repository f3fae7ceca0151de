"""A collection of operator cases, of which some fail, abort or do not end in a stage of the toolchain."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

FAULTS = ("abort_in_export", "hang_in_export", "raise_in_export", "abort_in_lower", "raise_in_lower")


class Sum(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x + x
        if self.fault == "loses_a_write":
            total[:, 0] = 1.0
            return total.relu()
        return total


def cases(faults: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a case per fault; `none` is a healthy case."""
    for number, fault in enumerate(faults):
        yield {
            "name": f"{number} {fault}",
            "operator": "add",
            "arguments": {"fault": fault},
            "inputs": {"x": torch.zeros(2, 3)},
            "skipped": "left out on purpose" if fault == "skipped" else None,
        }


def case(fault: str) -> nn.Module:
    """Return the module of a case, after the fault of its export."""
    if fault == "abort_in_export":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang_in_export":
        time.sleep(3600)
    if fault == "raise_in_export":
        raise ValueError("no such weights")
    if fault in ("abort_in_lower", "raise_in_lower"):
        _plant(fault)
    return Sum(fault)


def _plant(fault: str) -> None:
    """Let the lowering of this process fail."""
    from qnnsweep.tasks.toolchain import lower

    def instructions(*_: object) -> object:
        if fault == "abort_in_lower":
            os.abort()
        raise RuntimeError("the first line\nthe second line")

    lower.instructions = instructions  # type: ignore[assignment]


def inputs(count: int, *, fault: str) -> list[dict[str, Any]]:
    del fault
    return [
        {"inputs": {"x": torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))}} for seed in range(count)
    ]
