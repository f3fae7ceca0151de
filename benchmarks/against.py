"""An operator atlas on a device that changes what some programs return: whether exactly their cases are named.

    python benchmarks/against.py                                    all cases of ExecuTorch's tests, in 8a8w
    python benchmarks/against.py scheme=fp16 'model.arguments.operators=[add,linear]'

The device is this machine with ONNX Runtime instead of ExecuTorch's runtime. Of a share of the programs, it changes one
code: inside of the delegate for a debug program, in a final output for a program that ships. Everything else must be
equal to the simulator, in which ExecuTorch's runtime executed the same programs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pandas as pd

from qnnsweep.tasks.report.atlas_codes import differs, is_compared

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.atlas.changing_device import ChangingDevice


def main() -> int:
    """Run the atlas, and print the cases that were changed and those that were named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.05, help="of the programs, of which a case has two")
    parser.add_argument("--folder", type=Path, help="the folder of the artifacts; by default a temporary one")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    parser.add_argument("overrides", nargs="*", help="Hydra's overrides, such as scheme=fp16")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        device, artifacts = ChangingDevice.create(folder, options.share), folder / "artifacts"
        scheme = [] if any(word.startswith("scheme=") for word in options.overrides) else ["scheme=8a8w"]
        words = [*scheme, *options.overrides, *device.overrides, f"artifacts={artifacts}"]
        start, main = time.monotonic(), "from qnnsweep.flows.cli.main import main; main()"
        ended = subprocess.run(
            [sys.executable, "-c", main, "atlas", "--json", "--against=local", *words],
            check=False,
            text=True,
            stdout=subprocess.PIPE,
        )
        assert ended.returncode == 0, ended.stdout
        seconds, run_id = time.monotonic() - start, json.loads(ended.stdout.splitlines()[-1])["run_id"]
        table = pd.read_parquet(artifacts / "tables" / "atlas", filters=[("run_id", "==", run_id)])
        changed = device.changed(artifacts)
    executed = table[table["executed_on"].notna()]
    rows = [row.to_dict() for _, row in executed.astype(object).where(executed.notna(), None).iterrows()]
    named, compared = ({(row["case"], row["scheme"]) for row in rows if is_so(row)} for is_so in (differs, is_compared))
    not_compared = changed - compared  # their operators run on the CPU alone, or the simulator does not execute them
    changed &= compared
    for case, scheme in sorted(changed ^ named):
        print(f"{case} {scheme}: {'not named' if (case, scheme) in changed else 'named, and not changed'}")
    numbers = {
        "cases": len(table),
        "executed": len(executed),
        "compared": len(compared),
        "changed": len(changed),
        "changed_and_not_compared": len(not_compared),
        "named": len(named & changed),
        "named_wrongly": len(named - changed),
        "seconds": round(seconds),
    }
    print(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in numbers.items()))
    if options.json:
        print(json.dumps(numbers))
    return int(named != changed)


if __name__ == "__main__":
    sys.exit(main())
