"""How long programs for several SoCs take, next to ExecuTorch's official path called cell by cell.

Both sides start from nothing, in processes of their own, one after the other: torch.export, calibration, conversion,
lowering. Then every pair of programs is held to be the same: operator table, delegation, size, and the outputs of the
simulator bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory import GIB, Peak

from conf.load import load
from tasks.toolchain import runner
from tasks.toolchain.backends.qnn.sdk import find_sdk

SIDE = Path(__file__).with_name("sweep_side.py")
SOCS = ("SM8350", "SM8450", "SM8550", "SM8650", "SM8750", "SM8850")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="efficientnet_lite0")
    parser.add_argument("--scheme", default="8a8w")
    parser.add_argument("--socs", default=",".join(SOCS))
    parser.add_argument("--curve", default="1,2,4,6", help="of how many SoCs to measure qnnsweep, besides all")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    asked = parser.parse_args()
    socs = asked.socs.split(",")
    counts = sorted({int(count) for count in asked.curve.split(",") if int(count) < len(socs)})
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder=Path(folder), model=asked.model, scheme=asked.scheme)
        found = measured(bench, socs, counts)
    show(found)
    if asked.json:
        print(json.dumps(found))
    return 0 if not found["differing"] else 1


class Bench:
    def __init__(self, *, folder: Path, model: str, scheme: str) -> None:
        self.folder = folder
        self.environment = find_sdk(os.environ, folder / "toolchain").environment(os.environ)
        """For the runner."""
        self.fixed = [f"model={model}", f"scheme={scheme}"]

    def run(self, side: str, socs: list[str]) -> dict[str, Any]:
        """One side in a fresh process, with an empty store; its answer and the most memory it had."""
        store = self.folder / f"{side}-{len(socs)}"
        argv = [sys.executable, str(SIDE), side, str(store), *self.fixed, f"soc={','.join(socs)}"]
        print(f"{side}, {len(socs)} SoCs …", file=sys.stderr, flush=True)
        with (self.folder / "said").open("wb") as said:
            child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=said, text=True)
            peak = Peak(child.pid)
            answer, _ = child.communicate()
        if child.returncode:
            sys.exit((self.folder / "said").read_text())
        return json.loads(answer.splitlines()[-1]) | {"peak_gib": peak.stop() / GIB}


def measured(bench: Bench, socs: list[str], counts: list[int]) -> dict[str, Any]:
    official = bench.run("official", socs)
    ours = bench.run("qnnsweep", socs)
    whole = bench.run("whole", socs)
    curve = {count: bench.run("qnnsweep", socs[:count]) for count in counts}
    curve[len(socs)] = ours
    seconds = {count: run["seconds"] for count, run in curve.items()}
    slope, fixed = np.polyfit(list(seconds), list(seconds.values()), 1) if len(seconds) > 1 else (float("nan"),) * 2
    own: dict[str, list[float]] = {}
    for each in ours["took"]:
        own.setdefault(each["stage"], []).append(each["seconds"])
    return {
        "model_and_scheme": bench.fixed,
        "socs": socs,
        "ratio": ours["seconds"] / official["seconds"],
        "ratio_with_debug_program": whole["seconds"] / official["seconds"],
        "ratio_peak_memory": ours["peak_gib"] / official["peak_gib"],
        "seconds": {"official": official["seconds"], "qnnsweep": ours["seconds"], "with debug": whole["seconds"]},
        "peak_gib": {"official": official["peak_gib"], "qnnsweep": ours["peak_gib"], "with debug": whole["peak_gib"]},
        "curve": [
            {"socs": count, "qnnsweep_s": taken, "official_s": official["socs"][socs[count - 1]]["at_s"]}
            for count, taken in sorted(seconds.items())
        ],
        "seconds_once": float(fixed),
        "seconds_a_soc": float(slope),
        "stages": own,
        "cores": os.cpu_count(),
        "differing": differing(bench, official["socs"], ours["socs"]),
    }


def differing(bench: Bench, theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Every SoC and respect in which a program is another than the official one."""
    found = [
        f"{soc}: {what}: {ours[soc][what]}, officially {theirs[soc][what]}"
        for soc in theirs
        for what in ("operators", "delegation", "subgraphs", "bytes")
        if ours[soc][what] != theirs[soc][what]
    ]
    for soc in theirs:
        mine, official = (_outputs(bench, side[soc]["program"]) for side in (ours, theirs))
        if not mine or mine != official:
            found.append(f"{soc}: the outputs of the simulator")
    return found


def _outputs(bench: Bench, program: str) -> dict[str, bytes]:
    """What the simulator computes from one made-up input, by the runner that devices have."""
    request = load(bench.fixed).cells[0].request
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        folder = Path(name)
        (folder / "outputs").mkdir()
        (folder / "model.pte").write_bytes(Path(program).read_bytes())
        random = np.random.default_rng(0)
        names = []
        for each in request.model.inputs:
            value = random.uniform(-1, 1, each.shape) if "float" in each.dtype else random.integers(1, 99, each.shape)
            value.astype(each.dtype).tofile(folder / f"{each.name}.raw")
            names.append(f"{each.name}.raw")
        (folder / "input_list.txt").write_text(" ".join(names) + "\n")
        subprocess.run(
            [sys.executable, "-P", runner.__file__], cwd=folder, env=bench.environment, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return {path.name: path.read_bytes() for path in sorted((folder / "outputs").iterdir())}


def show(found: dict[str, Any]) -> None:
    print(f"{' '.join(found['model_and_scheme'])}, {len(found['socs'])} SoCs, {found['cores']} cores\n")
    print(f"{'':12}{'seconds':>10}{'peak GiB':>10}")
    for side, seconds in found["seconds"].items():
        print(f"{side:12}{seconds:>10.1f}{found['peak_gib'][side]:>10.2f}")
    print(f"\n{'SoCs':>4}{'qnnsweep s':>12}{'official s':>12}{'ratio':>8}")
    for row in found["curve"]:
        ratio = row["qnnsweep_s"] / row["official_s"]
        print(f"{row['socs']:>4}{row['qnnsweep_s']:>12.1f}{row['official_s']:>12.1f}{ratio:>8.3f}")
    print(
        f"\nqnnsweep: {found['seconds_once']:.1f} s once (start, export, quantize, the edge program) "
        f"and {found['seconds_a_soc']:.1f} s a SoC (partition, compile, emit; {found['cores']} at a time)"
    )
    for stage, seconds in found["stages"].items():
        print(f"  {stage:10}{', '.join(f'{each:.1f}' for each in seconds)} s")
    for key in ("ratio", "ratio_with_debug_program", "ratio_peak_memory"):
        print(f"{key:28}{found[key]:.3f}")
    print(
        "\n".join(["the programs differ:", *found["differing"]]) if found["differing"] else "the programs are the same"
    )


if __name__ == "__main__":
    sys.exit(main())
