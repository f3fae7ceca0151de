"""A benchmark of the start of the program: what a user waits for before a command answers.

    python benchmarks/startup.py --repeat 20 --json

Each command runs in a new process, in a folder of its own. A warm run is the second run of the same cell: it reuses the
programs, and executes and compares them again. The limits hold for an idle machine with two cores. Three lower limits
are measured in the same way: `python -c pass`, `import torch`, and an empty flow of Prefect with a temporary server.

Of `--repeat` runs of the quickstart, each from an empty store, the largest figures count: the whole (`quickstart_s`),
and the longest comparison of one of its nine cells (`slowest_compare_s`). With `taskset -c 0`, it has one core.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.flows.cluster import client_environment, prefect_server

PROGRAM = (sys.executable, "-c", "from qnnsweep.flows.cli.main import main; main()")
CELL = ("run", "model=digits_cnn", "scheme=8a8w", "soc=SM8650")
CELLS = 9  # of the quickstart
EMPTY_FLOW = "from prefect import flow\n@flow\ndef empty(): pass\nempty()"
LIMITS_S = {
    "help_s": 0.3,
    "wrong_s": 0.3,
    "plan_s": 1.5,
    "first_line_s": 1.0,
    "doctor_s": 3.0,
    "warm_temporary_server_s": 12.0,
    "warm_server_s": 6.0,
    "quickstart_s": 40.0,
    "slowest_compare_s": 3.0,
}
MOST_ROUNDS = 3
"""Of the commands other than the quickstart, whose median counts."""


class Bench:
    """Commands in one folder, with an environment that has no other Prefect server."""

    def __init__(self, folder: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.environment = inherited | {"PREFECT_HOME": str(folder / "prefect")}
        self.folder = folder

    def seconds(self, argv: Sequence[str], *, exit_code: int = 0, more: Mapping[str, str] | None = None) -> float:
        """Return the duration of a command, which must end with this exit code."""
        start = time.perf_counter()
        ran = subprocess.run(
            argv, cwd=self.folder, env={**self.environment, **(more or {})}, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - start
        assert ran.returncode == exit_code, f"{argv}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return seconds

    def seconds_to_first_line(self, argv: Sequence[str]) -> float:
        """Return the time until the command has printed its first line. The command is then ended."""
        start = time.perf_counter()
        with subprocess.Popen(argv, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            seconds = time.perf_counter() - start
            process.kill()
        assert line, f"{argv}: no line"
        return seconds


def quickstart(bench: Bench) -> dict[str, float]:
    """Return the seconds of a quickstart from an empty store, and of the longest comparison that it reports."""
    with tempfile.TemporaryDirectory() as store:
        argv = [*PROGRAM, "run", "experiment=quickstart", f"artifacts={store}"]
        start = time.perf_counter()
        ran = subprocess.run(argv, cwd=bench.folder, env=bench.environment, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
    compared = re.findall(r"^compare +.* done +([\d.]+) s", ran.stderr, re.MULTILINE)
    assert len(compared) == CELLS, ran.stderr
    return {"quickstart_s": seconds, "slowest_compare_s": max(map(float, compared))}


def measured(bench: Bench, server: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds of every command. `server`: the variables with which a command uses a running server."""
    return {
        "python_s": bench.seconds([sys.executable, "-c", "pass"]),
        "torch_s": bench.seconds([sys.executable, "-c", "import torch"]),
        "empty_flow_s": bench.seconds([sys.executable, "-c", EMPTY_FLOW]),
        "help_s": bench.seconds([*PROGRAM, "--help"]),
        "wrong_s": bench.seconds([*PROGRAM, "plan", "--nonsense"], exit_code=2),
        "plan_s": bench.seconds([*PROGRAM, "plan", "experiment=quickstart"]),
        "first_line_s": bench.seconds_to_first_line([*PROGRAM, *CELL]),
        "doctor_s": bench.seconds([*PROGRAM, "doctor"]),
        "warm_temporary_server_s": bench.seconds([*PROGRAM, *CELL]),
        "warm_server_s": bench.seconds([*PROGRAM, *CELL], more=server),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench, home = Bench(Path(folder)), Path(folder, "server")
        home.mkdir()
        with prefect_server(home, home / "log") as client:
            server = client_environment(client)
            bench.seconds([*PROGRAM, *CELL], more=server)  # compiles the cell
            rounds = [measured(bench, server) for _ in range(min(options.repeat, MOST_ROUNDS))]
        starts = [quickstart(bench) for _ in range(options.repeat)]
    result = {name: statistics.median(times[name] for times in rounds) for name in rounds[0]}
    result |= {name: max(times[name] for times in starts) for name in starts[0]}
    for name, seconds in result.items():
        limit = f"  limit {LIMITS_S[name]:g}" if name in LIMITS_S else ""
        print(f"{name:<24} {seconds:6.2f}{limit}")
    if options.as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
