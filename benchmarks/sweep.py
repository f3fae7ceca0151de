"""A benchmark of the compilation for several SoCs, compared with ExecuTorch's official path for each cell.

Both sides start from nothing, in separate processes, one after the other: torch.export, calibration, conversion,
lowering. Then the two programs of each SoC must be equal in operator table, delegation, size, and, bit by bit, in the
outputs of the simulator.
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

from memory import Peak

from qnnsweep.conf.load import load
from qnnsweep.conf.units import GIB
from qnnsweep.tasks.toolchain import runner
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk

SIDE = Path(__file__).with_name("sweep_side.py")
SOCS = ("SM8350", "SM8450", "SM8550", "SM8650", "SM8750", "SM8850")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="efficientnet_lite0")
    parser.add_argument("--scheme", default="8a8w")
    parser.add_argument("--socs", default=",".join(SOCS))
    parser.add_argument("--curve", default="1,2,4,6", help="further numbers of SoCs for which to measure qnnsweep")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    options = parser.parse_args()
    socs = options.socs.split(",")
    counts = sorted({int(count) for count in options.curve.split(",") if int(count) < len(socs)})
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder=Path(folder), model=options.model, scheme=options.scheme)
        result = measure(bench, socs, counts)
    show(result)
    if options.json:
        print(json.dumps(result))
    return 0 if not result["differing"] else 1


class Bench:
    def __init__(self, *, folder: Path, model: str, scheme: str) -> None:
        self.folder = folder
        self.environment = find_sdk(os.environ).environment(os.environ)
        """The environment of the runner."""
        self.fixed = [f"model={model}", f"scheme={scheme}"]

    def run(self, side: str, socs: list[str]) -> dict[str, Any]:
        """Run one side in a new process with an empty store; return its result and its peak memory."""
        store = self.folder / f"{side}-{len(socs)}"
        argv = [sys.executable, str(SIDE), side, str(store), *self.fixed, f"soc={','.join(socs)}"]
        print(f"{side}, {len(socs)} SoCs …", file=sys.stderr, flush=True)
        with (self.folder / "stderr").open("wb") as stderr:
            child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True)
            peak = Peak(child.pid)
            answer, _ = child.communicate()
        if child.returncode:
            sys.exit((self.folder / "stderr").read_text())
        return json.loads(answer.splitlines()[-1]) | {"peak_gib": peak.stop() / GIB}


def measure(bench: Bench, socs: list[str], counts: list[int]) -> dict[str, Any]:
    official = bench.run("official", socs)
    ours = bench.run("qnnsweep", socs)
    whole = bench.run("whole", socs)
    curve = {count: bench.run("qnnsweep", socs[:count]) for count in counts}
    curve[len(socs)] = ours
    seconds = {count: run["seconds"] for count, run in curve.items()}
    slope, fixed = np.polyfit(list(seconds), list(seconds.values()), 1) if len(seconds) > 1 else (float("nan"),) * 2
    stages: dict[str, list[float]] = {}
    for call in ours["took"]:
        stages.setdefault(call["stage"], []).append(call["seconds"])
    return {
        "model_and_scheme": bench.fixed,
        "socs": socs,
        "ratio": ours["seconds"] / official["seconds"],
        "ratio_with_debug_program": whole["seconds"] / official["seconds"],
        "ratio_peak_memory": ours["peak_gib"] / official["peak_gib"],
        "seconds": {"official": official["seconds"], "qnnsweep": ours["seconds"], "with debug": whole["seconds"]},
        "peak_gib": {"official": official["peak_gib"], "qnnsweep": ours["peak_gib"], "with debug": whole["peak_gib"]},
        "curve": [
            {"socs": count, "qnnsweep_s": ours_s, "official_s": official["socs"][socs[count - 1]]["at_s"]}
            for count, ours_s in sorted(seconds.items())
        ],
        "seconds_once": float(fixed),
        "seconds_a_soc": float(slope),
        "stages": stages,
        "cores": os.cpu_count(),
        "differing": differing(bench, official["socs"], ours["socs"]),
    }


def differing(bench: Bench, theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Return every difference between a program and the program of the official path."""
    differences = [
        f"{soc}: {what}: {ours[soc][what]}, officially {theirs[soc][what]}"
        for soc in theirs
        for what in ("operators", "delegation", "subgraphs", "bytes")
        if ours[soc][what] != theirs[soc][what]
    ]
    for soc in theirs:
        mine, official = (_outputs(bench, side[soc]["program"]) for side in (ours, theirs))
        if not mine or mine != official:
            differences.append(f"{soc}: the outputs of the simulator")
    return differences


def _outputs(bench: Bench, program: str) -> dict[str, bytes]:
    """Return the outputs of the simulator for one random input, computed by the runner of the devices."""
    request = load(bench.fixed).cells[0].request
    with tempfile.TemporaryDirectory(dir=bench.folder) as name:
        folder = Path(name)
        (folder / "outputs").mkdir()
        (folder / "model.pte").write_bytes(Path(program).read_bytes())
        random = np.random.default_rng(0)
        names = []
        for spec in request.model.inputs:
            value = random.uniform(-1, 1, spec.shape) if "float" in spec.dtype else random.integers(1, 99, spec.shape)
            value.astype(spec.dtype).tofile(folder / f"{spec.name}.raw")
            names.append(f"{spec.name}.raw")
        (folder / "input_list.txt").write_text(" ".join(names) + "\n")
        subprocess.run(
            [sys.executable, "-P", runner.__file__], cwd=folder, env=bench.environment, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return {path.name: path.read_bytes() for path in sorted((folder / "outputs").iterdir())}


def show(result: dict[str, Any]) -> None:
    print(f"{' '.join(result['model_and_scheme'])}, {len(result['socs'])} SoCs, {result['cores']} cores\n")
    print(f"{'':12}{'seconds':>10}{'peak GiB':>10}")
    for side, seconds in result["seconds"].items():
        print(f"{side:12}{seconds:>10.1f}{result['peak_gib'][side]:>10.2f}")
    print(f"\n{'SoCs':>4}{'qnnsweep s':>12}{'official s':>12}{'ratio':>8}")
    for row in result["curve"]:
        ratio = row["qnnsweep_s"] / row["official_s"]
        print(f"{row['socs']:>4}{row['qnnsweep_s']:>12.1f}{row['official_s']:>12.1f}{ratio:>8.3f}")
    print(
        f"\nqnnsweep: {result['seconds_once']:.1f} s once (start, export, quantize, the edge program) "
        f"and {result['seconds_a_soc']:.1f} s per SoC (partition, compile, emit; {result['cores']} at a time)"
    )
    for stage, seconds in result["stages"].items():
        print(f"  {stage:10}{', '.join(f'{value:.1f}' for value in seconds)} s")
    for key in ("ratio", "ratio_with_debug_program", "ratio_peak_memory"):
        print(f"{key:28}{result[key]:.3f}")
    print(
        "\n".join(["the programs differ:", *result["differing"]]) if result["differing"] else "the programs are equal"
    )


if __name__ == "__main__":
    sys.exit(main())
