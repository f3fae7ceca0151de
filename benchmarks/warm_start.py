"""The program `qnnsweep` in forks of a process that has already imported it: a cached sweep then takes a second.

A fork has its own session, working directory, environment and output files, and ends as a process of Python does. The
process that imports reads requests from its stdin: one line of JSON per start. It answers with two lines, the id of the
started process and, at its end, the exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk

HERE = Path(__file__).parent
PROGRAM = "from qnnsweep.flows.cli.main import main; main()"
IMPORTS_S = 300.0
IMPORTED = (
    "qnnsweep.flows.cli.main", "qnnsweep.flows.cli.foreground", "qnnsweep.flows.cli.progress",
    "qnnsweep.flows.runs.regressions", "qnnsweep.flows.server.connect", "qnnsweep.flows.sweep", "prefect.flow_engine",
    "prefect.task_engine", "pyarrow.pandas_compat", "qnnsweep.tasks.report.terminal",
    "qnnsweep.tasks.toolchain.preload",
)  # fmt: skip
"""What a run of the program imports."""


class WarmProgramEnded(Exception):
    """The process that imports has ended: the benchmark cannot go on."""


class WarmProgram:
    """The process that has imported the program, and the program that it started last."""

    def __init__(self, environment: Mapping[str, str], links: Path) -> None:
        """Start the process. `links`: an existing folder for the links of `find_sdk`."""
        self._environment = dict(environment)
        linked = {name: text for name, text in find_sdk(environment, links).environment({}).items() if "PATH" in name}
        lines = f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]}; import warm_start; warm_start.fork()"
        self._process = subprocess.Popen(
            # No file: a worker of the program would import the file of its main module.
            [sys.executable, "-c", lines],
            env=self._environment | linked,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C must not end it before the cases have ended
        )
        if self._answer(IMPORTS_S) is None:
            raise RuntimeError("the program cannot be imported")

    def start(self, arguments: Sequence[str], folder: Path, **environment: str) -> int:
        """Start the program and return the id of its process. Its output goes to the files `out` and `err`."""
        request = {"arguments": list(arguments), "folder": str(folder), "environment": self._environment | environment}
        assert self._process.stdin is not None
        for name in ("out", "err"):  # a signal can end the fork before it opens them
            (folder / name).write_bytes(b"")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise WarmProgramEnded from error
        pid = self._answer(IMPORTS_S)
        assert pid is not None
        return pid

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end of the started program. Return its exit code, or None if it still runs."""
        return self._answer(timeout_s)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self, timeout_s: float) -> int | None:
        assert self._process.stdout is not None
        until, line = time.monotonic() + timeout_s, b""
        while not line.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            octet = os.read(self._process.stdout.fileno(), 1)
            if not octet:
                raise WarmProgramEnded
            line += octet
        return int(line)


def fork() -> None:
    """Import the program and serve requests: each fork calls the program's `main`."""
    from qnnsweep.flows.server.settings import configure_prefect

    configure_prefect()
    for name in IMPORTED:
        importlib.import_module(name)
    from qnnsweep.tasks.toolchain.source_digest import functions_digest

    functions_digest(["qnnsweep.tasks.models.digits:digits_cnn"])  # it lists the installed packages, once for all forks
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    print(0, flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
            _run()
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run() -> NoReturn:
    """Call the program, and end as a process of Python does."""
    from qnnsweep.flows.cli.ending import end
    from qnnsweep.flows.cli.main import main

    try:
        main()
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        end(1)


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        opened = os.open(name, flags if number == 0 else flags | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["qnnsweep", *request["arguments"]]
