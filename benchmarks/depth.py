"""A benchmark of total and introduced error by depth: N × [convolution to 64 channels, batch norm, ReLU6], 8a8w.

    python benchmarks/depth.py                         N = 1, 3, 7, 13, 23, 29 on SM8650; writes docs/depth.svg
    python benchmarks/depth.py scheme=16a8w --plot=    another cell, no plot

The benchmark is one sweep with one model per depth. The factory is in benchmarks/depth_models/; this program writes
the YAML files. A larger model begins with the blocks of every smaller model, with equal weights. The results are in
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from depth_plot import Series, svg

HERE = Path(__file__).parent
FACTORY = HERE / "depth_models"
DEPTHS = (1, 3, 7, 13, 23, 29)
CELL = {"scheme": "8a8w", "soc": "SM8650"}
FLAT_DB = 3.0
"""The largest allowed difference between depths, in dB, of one operator type's median introduced SNR."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="for the whole sweep, in the grammar of `qnnsweep run`")
    parser.add_argument("--plot", default=str(HERE.parent / "docs" / "depth.svg"), help="file of the plot; empty: none")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    result = summarize(run_sweep(options.overrides))
    show(result)
    if options.plot:
        Path(options.plot).write_text(plot(result))
    if options.json:
        print(json.dumps(result))
    return 0 if result["total_grows"] and result["introduced_is_flat"] else 1


def run_sweep(overrides: Sequence[str]) -> pd.DataFrame:
    """Return the table `operators` of one sweep over all depths, with the column `blocks`."""
    keys = {override.partition("=")[0] for override in overrides}
    cell = [f"{key}={value}" for key, value in CELL.items() if key not in keys]
    base = yaml.safe_load((FACTORY / "model" / "conv_blocks.yaml").read_text())
    names = {f"conv_blocks_{blocks}": blocks for blocks in DEPTHS}
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "model")
        models.mkdir()
        for name, blocks in names.items():
            content = yaml.safe_dump({**base, "name": name, "arguments": {"blocks": blocks}})
            (models / f"{name}.yaml").write_text(content)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("qnnsweep")), "run", "--json",
                "--config-dir", str(FACTORY), "--config-dir", folder, f"model={','.join(names)}",
                "measure.operator_samples=3", *cell, *overrides,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    print(done.stdout)
    run = json.loads(done.stdout.splitlines()[-1]) if done.returncode in (0, 1) else {"outcomes": {}}
    # The deepest models have nearly no signal left, as intended, so out of tolerance is not a failure here.
    if not run["outcomes"] or run["outcomes"].keys() - {"passed", "out_of_tolerance"}:
        sys.exit("the sweep failed")
    table = pd.read_parquet(Path(run["tables"], "operators", f"run={run['run_id']}"))
    return table.assign(blocks=table["model"].map(names))


def summarize(operators: pd.DataFrame) -> dict[str, Any]:
    """Return, per depth, the median total error of the last operator and the introduced error per operator type."""
    compared = operators[operators["verdict"] != "blind"]
    introduced = compared.pivot_table("introduced_snr_db", "blocks", "target", "median")
    steps = compared.pivot_table("introduced_steps", "blocks", "target", "max")
    last = compared[compared["operator_index"] == compared.groupby("model")["operator_index"].transform("max")]
    total = last.groupby("blocks")[["snr_db", "mse"]].median()
    verdicts = compared.groupby("blocks")["verdict"].value_counts()
    spread = introduced.max() - introduced.min()
    return {
        "depths": [
            {
                "blocks": int(blocks),
                "total_snr_db": float(total["snr_db"][blocks]),
                "total_mse": float(total["mse"][blocks]),
                "introduced_snr_db": {str(kind): float(value) for kind, value in introduced.loc[blocks].items()},
                "introduced_steps": {str(kind): float(value) for kind, value in steps.loc[blocks].items()},
                "verdicts": {str(kind): int(count) for kind, count in verdicts[blocks].items()},
            }
            for blocks in total.index
        ],
        "introduced_spread_db": {str(kind): float(value) for kind, value in spread.items()},
        "total_grows": bool(total["snr_db"].is_monotonic_decreasing),
        "introduced_is_flat": bool((spread <= FLAT_DB).all()),
    }


def show(result: Mapping[str, Any]) -> None:
    kinds = list(result["introduced_spread_db"])
    print(f"{'N':>3}{'total MSE':>12}{'total dB':>10}" + "".join(f"{'introduced by ' + kind:>42}" for kind in kinds))
    for depth in result["depths"]:
        columns = (f"{depth['introduced_snr_db'][k]:.1f} dB, {depth['introduced_steps'][k]:g} steps" for k in kinds)
        cells = "".join(f"{column:>42}" for column in columns)
        print(f"{depth['blocks']:>3}{depth['total_mse']:>12.2e}{depth['total_snr_db']:>10.1f}{cells}")
    for kind, spread in result["introduced_spread_db"].items():
        print(f"introduced by {kind}: within {spread:.1f} dB")
    print(f"total error grows with depth: {result['total_grows']}; introduced is flat: {result['introduced_is_flat']}")


def plot(result: Mapping[str, Any]) -> str:
    depths = result["depths"]
    blocks = [depth["blocks"] for depth in depths]
    kinds = [
        Series(f"introduced by {kind.split('.')[1]}", blocks, [depth["introduced_snr_db"][kind] for depth in depths])
        for kind in result["introduced_spread_db"]
    ]
    total = Series("total, last operator", blocks, [depth["total_snr_db"] for depth in depths])
    return svg([*kinds, total], x="blocks of convolution, batch norm, ReLU6", y="SNR, dB")


if __name__ == "__main__":
    sys.exit(main())
