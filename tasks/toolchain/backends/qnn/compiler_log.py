"""What the HTP compiler prints: its errors, and what a compiled subgraph costs."""

from __future__ import annotations

import re

from tasks.records import CompileFacts

_ERROR = re.compile(r"^\s*\[ERROR\] \[Qnn ExecuTorch\]:\s*(?:<E>\s*)?(.+?)\s*$", re.MULTILINE)
_FACT = re.compile(r"^(spill_bytes|fill_bytes|write_total_bytes|read_total_bytes)\s*=\s*(\d+)\s*$", re.MULTILINE)


def errors(log: str) -> list[str]:
    """What the compiler calls errors, each once, in their order, without the times and names around them."""
    return list(dict.fromkeys(_ERROR.findall(log)))


def compile_facts(log: str) -> tuple[CompileFacts, ...]:
    """The DDR summaries, one a delegated subgraph, in the order they were compiled; none if they are incomplete."""
    found: dict[str, list[int]] = {
        name: [] for name in ("spill_bytes", "fill_bytes", "write_total_bytes", "read_total_bytes")
    }
    for name, value in _FACT.findall(log):
        found[name].append(int(value))
    if len({len(values) for values in found.values()}) > 1:
        return ()
    return tuple(
        CompileFacts(subgraph=index, spill_bytes=spill, fill_bytes=fill, write_total_bytes=write, read_total_bytes=read)
        for index, (spill, fill, write, read) in enumerate(zip(*found.values(), strict=True))
    )
