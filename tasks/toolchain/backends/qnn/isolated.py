"""Context binaries from anywhere, read in a process of its own: QNN's reader does not check the bytes that it reads."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qnnsweep.tasks.errors import EnvironmentUnusable, EvidenceError
from qnnsweep.tasks.toolchain.backends.qnn.context import read_graphs
from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER, find_sdk

_DEADLINE_S = 60
Graphs = Mapping[str, Mapping[str, Any]]
"""By the name of a graph, the fields of its `ContextFacts`."""


def graphs_of(binaries: Sequence[bytes]) -> list[Graphs | str]:
    """Return the graphs of every context binary, or why they cannot be read."""
    answers: list[Graphs | str] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.bin") for number in range(len(binaries))]
        for file, binary in zip(files, binaries, strict=True):
            file.write_bytes(binary)
        links = Path(folder, "qnn")
        links.mkdir()
        try:
            environment = os.environ | find_sdk(os.environ, links).environment(os.environ)
        except EnvironmentUnusable as error:
            return [str(error)] * len(binaries)
        while len(answers) < len(files):
            left = files[len(answers) :]
            command = [sys.executable, "-P", "-m", __name__, *map(str, left)]
            read, end = _run(command, environment)
            answers += read
            if len(read) < len(left):  # it ended while it read the next binary
                answers.append(f"QNN's reader {end} on the context binary")
    return answers


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[Graphs | str], str]:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=_DEADLINE_S, check=False)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = error.stdout or b"", None
    answers: list[Graphs | str] = []
    for line in output.splitlines():
        with suppress(ValueError):  # the last line is incomplete
            answers.append(json.loads(line))
    if code is None:
        return answers, f"did not end in {_DEADLINE_S} s"
    return answers, f"ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def main(files: Sequence[str]) -> None:
    library = Path(os.environ["QNN_SDK_ROOT"], LIBRARY_FOLDER, "libQnnSystem.so")
    for file in files:
        try:
            answer: Any = {name: asdict(facts) for name, facts in read_graphs(Path(file).read_bytes(), library).items()}
        except EvidenceError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
