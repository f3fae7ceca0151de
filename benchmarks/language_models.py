"""A tiny checkpoint's folder per family of decoders, run by `model=llm:FOLDER` in float16 and in integers.

    python benchmarks/language_models.py [--schemes fp16 16a8w] [--only qwen2 ...] [--soc SM8650] [--json]

Each folder has random weights and a small tokeniser. The table has, per family and scheme, the lowest SNR, the mean KL
divergence, the share of tokens with the same most probable next token, how many sequences have all tokens of eager
PyTorch, the first wrong token, and the operator that the sentence names.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import qnnsweep
from qnnsweep.tasks.results.step_sentences import step_in_words
from tests.models.checkpoints import FAMILIES, write_checkpoint


def answer(folder: Path, scheme: str, soc: str, artifacts: Path) -> dict[str, Any]:
    """Run a folder with its own texts, and return a row of the table."""
    started = time.monotonic()
    overrides = [f"model=llm:{folder}", f"scheme={scheme}", f"soc={soc}", "measure.cures=0"]
    result = qnnsweep.run(*overrides, artifacts=artifacts, progress=False)
    cell = result.table("cells").iloc[0]
    row: dict[str, Any] = {
        "family": folder.name,
        "scheme": scheme,
        "outcome": cell["outcome"],
        "seconds": round(time.monotonic() - started),
        "why": cell["error"] or cell["reason"],
    }
    if cell["final_snr_db"] is None:
        return row
    steps = result.table("steps")
    scores = result.table("scores").set_index("statistic")["value"]
    wrong = steps[steps["token"] != steps["token_reference"]]
    first = None if wrong.empty else wrong.iloc[0]
    return row | {
        "snr_db": cell["final_snr_db"],
        "kl_divergence_nats": scores["kl_divergence_mean"],
        "same_top1": scores["same_top1"],
        "sequences": steps["sample"].nunique(),
        "all_tokens": steps["sample"].nunique() - wrong["sample"].nunique(),
        "first": None if first is None else step_in_words(first["step"], first["method"], first["sample_name"][:20]),
        "sentence": cell["diagnosis"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="+", default=["fp16", "16a8w"])
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--soc", default="SM8650")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="language-models-") as work:
        for family in options.only:
            folder = Path(work) / family
            write_checkpoint(folder, family)
            for scheme in options.schemes:
                rows.append(answer(folder, scheme, options.soc, Path(work) / "artifacts"))
                print(*(f"{name}={value}" for name, value in rows[-1].items()), sep="  ", flush=True)
    exact = sum(row.get("all_tokens") == row.get("sequences") for row in rows if row["scheme"] == "fp16")
    print(f"{len(rows)} cells; in fp16, {exact} of {len(options.only)} have all tokens of eager PyTorch")
    if options.json:
        print(json.dumps({"cells": len(rows), "fp16_all_tokens": exact, "rows": rows}, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())
