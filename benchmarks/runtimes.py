"""The tables of cells whose programs ONNX Runtime executed, beside those of ExecuTorch's runtime.

    python benchmarks/runtimes.py                                      the models that need no optional extra
    python benchmarks/runtimes.py model=digits_cnn soc=SM8650          other cells
    python benchmarks/runtimes.py --where here --where ssh model=digits_cnn   ONNX Runtime here, and behind a real sshd

All runs have one store: only the first one compiles, the others execute and compare the same programs. Each row of the
tables `outputs`, `operators`, `budget`, `probe`, `steps` and, of collections, `atlas` must be equal, to the last bit,
but for the columns that say where it ran. The Python of the device has the packages numpy, onnxruntime and
onnxruntime-qnn, with what they require, and nothing else. `--own-python`: the Python of this environment, which can
compute operators on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.devices.bare_python import bare_python
from tests.devices.loopback import Sshd, running

CELLS = {
    "model": "digits_cnn,tiny_gru,tiny_llama,silero_vad,minilm_l6,efficientnet_lite0",
    "scheme": "fp16,8a8w,16a8w",
    "soc": "SM8350,SM8550,SM8650,SM8750",
}
TABLES = ("outputs", "operators", "budget", "probe", "steps", "atlas")
OF_PLACE = [
    "run", "run_id", "device", "executed_on", "seconds", "log",
    "equal_tensors", "runtimes_differ", "simulator_equal", "simulator_steps",
]  # fmt: skip
"""The columns that say where and how long a cell ran, and what comes of two executions of it."""
CELL = ["model", "scheme", "soc"]


def main() -> None:
    """Run ExecuTorch's runtime once and ONNX Runtime in each place. Print the numbers of equal and different rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places = ("here", "ssh")
    parser.add_argument("--where", action="append", choices=places, help="where ONNX Runtime executes; default here")
    parser.add_argument("--own-python", action="store_true", help="the device has the Python of this environment")
    parser.add_argument("--folder", type=Path, help="the folder of the artifacts; by default a temporary one")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("overrides", nargs="*", help="Hydra's overrides, such as model=digits_cnn")
    arguments = parser.parse_args()
    named = {override.partition("=")[0] for override in arguments.overrides}
    overrides = [*arguments.overrides, *(f"{key}={value}" for key, value in CELLS.items() if key not in named)]
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = sys.executable if arguments.own_python else bare_python(folder / "python")
        devices = {
            where: stack.enter_context(second_device(folder, python, ssh=where == "ssh"))
            for where in arguments.where or ["here"]
        }
        settings = [*overrides, "measure.cures=0", f"artifacts={folder / 'artifacts'}"]
        tables = folder / "artifacts" / "tables"
        first = run(settings, tables)
        runs = {where: run([*settings, *device], tables) for where, device in devices.items()}
        table = pd.concat(compared(tables, first, second).assign(where=where) for where, second in runs.items())
    print(table.to_string(index=False))
    unlike = table[(table["different"] > 0) | (table["outcome"] != table["outcome of ONNX Runtime"])]
    numbers = {"compared": len(table), "equal": len(table) - len(unlike), "rows": int(table["rows"].sum())}
    print(json.dumps(numbers))
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers))


@contextmanager
def second_device(folder: Path, python: str, *, ssh: bool) -> Iterator[list[str]]:
    """Yield the arguments that select a device with ONNX Runtime."""
    if not ssh:
        yield ["device.runner=onnxruntime", f"device.python={python}"]
        return
    sshd = Sshd(folder=folder / "sshd")
    options = {"known_hosts": str(sshd.known_hosts), "key_file": str(sshd.key), "agent": False}
    board = {"name": "board", "transport": "ssh", "address": f"127.0.0.1:{sshd.port}", "ssh": options}
    board |= {"work_folder": str(folder / "on the board"), "python": python, "runner": "onnxruntime"}
    (folder / "conf" / "device").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "device" / "board.yaml").write_text(yaml.safe_dump(board))
    with running(sshd):
        yield [f"--config-dir={folder / 'conf'}", "device=board"]


def run(arguments: list[str], tables: Path) -> str:
    """Run a sweep. Return the identifier of the run, which is the newest in the table of cells."""
    command = [Path(sys.executable).with_name("qnnsweep"), "run", *arguments]
    environment = os.environ | {"PREFECT_HOME": str(tables.parent / "prefect")}
    subprocess.run(command, check=False, env=environment)
    return str(read(tables, "cells")["run_id"].max())


def read(tables: Path, name: str, run: str | None = None) -> pd.DataFrame:
    """Return a table of a run, or of all runs; an empty one if there are no rows."""
    if not (tables / name).exists():
        return pd.DataFrame(columns=["run_id", *CELL])
    return pd.read_parquet(tables / name, filters=None if run is None else [("run_id", "==", run)])


def compared(tables: Path, first: str, second: str) -> pd.DataFrame:
    """Return, per cell, how many rows of both runs are equal and different, and in which tables."""
    cells = read(tables, "cells")
    sides = [cells[cells["run_id"] == run].set_index(CELL) for run in (first, second)]
    both = {name: [read(tables, name, run) for run in (first, second)] for name in TABLES}
    lines: list[dict[str, object]] = []
    for cell in sides[0].index:
        row = sides[0].loc[cell]
        rows, different, where = 0, 0, []
        for name in TABLES:
            counts = unlike_rows(*(of_cell(table, cell) for table in both[name]))
            rows, different = rows + counts[0], different + counts[1]
            where += [name] if counts[1] else []
        other = sides[1]["outcome"].get(cell)
        lines.append(dict(zip(CELL, cell, strict=True)) | {"outcome": row["outcome"], "outcome of ONNX Runtime": other})
        lines[-1] |= {"rows": rows, "different": different, "tables": ",".join(where)}
    return pd.DataFrame.from_records(lines)


def of_cell(table: pd.DataFrame, cell: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a cell, without the columns that say where it ran."""
    chosen = table.merge(pd.DataFrame([dict(zip(CELL, cell, strict=True))]), on=CELL)
    return chosen.drop(columns=OF_PLACE, errors="ignore").reset_index(drop=True)


def unlike_rows(first: pd.DataFrame, second: pd.DataFrame) -> tuple[int, int]:
    """Return the number of rows, and how many of them are not equal bit for bit."""
    if first.shape != second.shape:
        return max(len(first), len(second)), max(len(first), len(second))
    text = [
        frame.map(repr).apply(tuple, axis=1) if len(frame) else pd.Series(dtype=object) for frame in (first, second)
    ]
    return len(first), int((text[0] != text[1]).sum())


if __name__ == "__main__":
    main()
