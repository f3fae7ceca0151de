"""What ExecuTorch's Inspector says about the operators of a capture. Runs in a worker."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executorch.devtools import Inspector

from qnnsweep.tasks.errors import raise_shortage
from qnnsweep.tasks.records import Operator

_LONGEST = 200


def inspector_gaps(
    operators: Sequence[Operator], etrecord: Path, etdump: Path, buffer: Path
) -> tuple[dict[int, float | None], str | None]:
    """Return the Inspector's SNR by operator index, and why it has none at all.

    A row of the Inspector is that of the last operator that it names. The SNR is None if it is no finite number.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inspector = Inspector(etdump_path=str(etdump), etrecord=str(etrecord), debug_buffer_path=str(buffer))
            table: Any = inspector.calculate_numeric_gap("SNR")
    except Exception as error:  # noqa: BLE001 - whatever it cannot do, it raises something
        raise_shortage(error)
        line = str(error).strip().partition("\n")[0]
        return {}, f"{type(error).__name__}: {line}"[:_LONGEST]
    # The Inspector has written the debug handles into the nodes of the exported program, whose names it shows.
    exported = inspector._etrecord.exported_program if inspector._etrecord else None
    nodes = exported.graph.nodes if exported else ()
    handles = {row.name: row.debug_handle for row in operators}
    handles |= {node.name: node.meta.get("debug_handle") for node in nodes}
    gaps: dict[int, float | None] = {}
    for names, gap in zip(table["aot_ops"], table["gap"], strict=True):
        named = {handles.get(name) for name in names} - {None}
        rows = [row.index for row in operators if row.debug_handle in named and row.output_index == 0 and row.shape]
        gaps |= dict.fromkeys(rows[-1:], _number(gap))
    return gaps, None


def _number(gap: Any) -> float | None:
    value = float(gap[0] if isinstance(gap, list | tuple) else gap)
    return value if abs(value) < float("inf") else None
