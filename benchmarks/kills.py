"""A sweep that is killed with SIGKILL at random moments and run again: the program, a worker or the server.

Every sweep starts from nothing. Except for times, its tables must equal those of an undisturbed run; no file may be
incomplete and no process may remain. A kill after the end of its sweep does not count; its time is then the latest time
of further kills.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.flows.kill_and_rerun import VICTIMS, kill_and_rerun, run_undisturbed
from tests.program import program_at

COMMAND = [
    "run", "--json", "model=digits_cnn", "scheme=8a8w", "soc=SM8550,SM8650", "model.calibration.count=32",
    "model.evaluation.count=8",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line of stdout")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = program_at(folder, folder)
        expected, seconds = run_undisturbed(program, COMMAND, folder / "undisturbed")
        print(f"undisturbed: {seconds:.1f} s", flush=True)
        kills = equal = rounds = 0
        latest_s = seconds
        while kills < options.times:
            after_s, victim, rounds = chance.uniform(0, latest_s), VICTIMS[kills % len(VICTIMS)], rounds + 1
            hit, tables = kill_and_rerun(program, COMMAND, folder / str(rounds), victim, after_s, chance)
            different = sorted(table for table in expected if tables[table] != expected[table])
            if hit is None:
                latest_s = after_s
            if hit is not None or different:
                kills, equal = kills + 1, equal + (not different)
            label = f"{kills:3} after {after_s:5.1f} s" if hit else "  -"
            print(f"{label} {hit or 'the sweep had ended'}: {different or 'equal tables'}", flush=True)
    print(f"{equal} of {options.times} ended with the tables of the undisturbed run")
    if options.json:
        print(json.dumps({"times": options.times, "equal": equal, "undisturbed_s": seconds}))
    return 0 if equal == options.times else 1


if __name__ == "__main__":
    sys.exit(main())
