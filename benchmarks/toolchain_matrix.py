"""Programs that one toolchain compiled, run with the libraries of another: one Markdown table per scheme.

    qnnsweep run toolchain=default,qnn-2.50,qnn-2.51 scheme=8a8w,16a8w
    python benchmarks/toolchain_matrix.py artifacts        the programs of the latest run in this folder

A field of the table is the SNR of the outputs against eager PyTorch (lowest of all samples), or QNN's words when it
refuses the program. `=` marks outputs that are equal, bit by bit, to those of the release that compiled the program.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.codec import decode
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk
from qnnsweep.tasks.toolchain.prepared.record import PreparedToolchain, prepared_toolchains

RUN = """
import hashlib, json, sys, torch
import numpy as np
from executorch.extension.pybindings import _C
from safetensors.numpy import load_file
program, inputs, expected, name = sys.argv[1:]
module = _C._load_for_executorch(program)
inputs, expected = load_file(inputs), load_file(expected)
digest, lowest = hashlib.sha256(), float("inf")
for sample in range(len(inputs)):
    (actual,) = module.run_method("forward", [torch.from_numpy(inputs[f"{sample}/{name}"])])
    reference = expected[f"{sample}/0"].astype(np.float64)
    noise = np.square(actual.numpy() - reference).sum()
    digest.update(actual.numpy().tobytes())
    lowest = min(lowest, 10 * np.log10(np.square(reference).sum() / noise))
print("ran:", json.dumps([float(lowest), digest.hexdigest()]))
"""


def environments(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "default", find_sdk(os.environ, folder).environment(os.environ)
    for toolchain in prepared_toolchains(os.environ):
        assert isinstance(toolchain, PreparedToolchain)
        yield toolchain.name, toolchain.sdk.environment(os.environ)


def outcome(environment: Mapping[str, str], *arguments: str) -> tuple[float | str, str]:
    """Return the lowest SNR in dB and the digest of the outputs; or QNN's words, and nothing."""
    argv = [sys.executable, "-c", RUN, *arguments]
    ran = subprocess.run(argv, env=os.environ | environment, capture_output=True, text=True, check=False)
    for line in ran.stdout.splitlines():
        if line.startswith("ran: "):
            snr_db, digest = json.loads(line.removeprefix("ran: "))
            return snr_db, digest
    words = [line.rpartition("<E>")[2].strip() for line in (ran.stdout + ran.stderr).splitlines() if "<E>" in line]
    return next(iter(words), f"exit code {ran.returncode}"), ""


def main(place: str) -> None:
    store = Store.at(place)
    run = tables.runs(store)[-1]
    rows = tables.rows(store, "cells", run)
    names = list(dict.fromkeys(str(row["toolchain"]) for row in rows))
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        matrix(store, run, str(scheme), names)


def matrix(store: Store, run: str, scheme: str, names: list[str]) -> None:
    """Print the table of one scheme."""
    with tempfile.TemporaryDirectory() as folder:
        runtimes = dict(environments(Path(folder)))
        print(f"\n{scheme}\n\n| compiled by | {' | '.join(f'run by {name}' for name in names)} |")
        print("|---|" + "---|" * len(names))
        for compiler in names:
            files = store.root / "runs" / run / "files" / "digits_cnn" / scheme / "SM8650"
            files = files / ("" if compiler == "default" else f"@{compiler}") / "qnn" / "local"
            lowered: Any = decode((files / "lowered.parquet").read_bytes())
            inputs = Path(folder, "inputs.safetensors")
            inputs.write_bytes(store.read(lowered.methods[0].exported.evaluation))
            arguments = (str(files / "program.pte"), str(inputs), str(files / "outputs_eager.safetensors"), "image")
            results = {name: outcome(runtimes[name], *arguments) for name in names}
            fields = (
                f"{snr_db:.2f} dB{' =' if digest == results[compiler][1] else ''}" if digest else str(snr_db)
                for snr_db, digest in results.values()
            )
            print(f"| {compiler} | {' | '.join(fields)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
