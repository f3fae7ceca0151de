"""The run of a command in a process of its own, with its progress shown where the caller looks."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qnnsweep.conf.errors import DEVICES_UNUSABLE, ENVIRONMENT_UNUSABLE, REQUEST_WRONG
from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable, QnnsweepError, RequestError

_ERRORS = {REQUEST_WRONG: RequestError, ENVIRONMENT_UNUSABLE: EnvironmentUnusable, DEVICES_UNUSABLE: DeviceError}
_PROGRAM = "qnnsweep: "
"""The beginning of a line with an error."""
_END_S = 30
"""The number of seconds in which an interrupted command has to end."""
Show = Callable[[str], None]


def call(words: Sequence[str], *, progress: bool = True) -> dict[str, Any]:
    """Run a command, and return its JSON object. If this call is interrupted, nothing of the command continues.

    words: the words of the command line, without `qnnsweep`.
    progress: whether its progress is shown: in a notebook as one line that changes, elsewhere as lines on stderr.

    Raises the error of the command, with its message: RequestError, EnvironmentUnusable, DeviceError or QnnsweepError.
    """
    # -P: a folder `tasks` or `conf` in the working folder must not hide a package that qnnsweep imports.
    command = [sys.executable, "-P", "-m", "qnnsweep.flows.cli.child", str(os.getpid()), *words, "--json"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        _shown(progress) as show,
        # In a session of its own: Ctrl-C in a terminal reaches this process alone, which then ends the command.
        subprocess.Popen(command, **pipes, text=True, errors="replace", start_new_session=True) as process,
    ):
        said: list[str] = []
        printed: list[str] = []
        readers = [
            threading.Thread(target=_read, args=(process.stderr, said, show), daemon=True),
            threading.Thread(target=_read, args=(process.stdout, printed), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            for reader in readers:
                reader.join(_END_S)  # a process that the command left behind may hold the pipe
    return _answer(process.returncode, printed, said)


def _answer(exit_code: int, printed: Sequence[str], said: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(printed[-1])
        if "error" not in found:
            return found
        raise _ERRORS.get(exit_code, QnnsweepError)(found["error"]["message"])
    except (IndexError, ValueError):
        errors = [line.removeprefix(_PROGRAM) for line in said if line.startswith(_PROGRAM)]
        message = errors[-1] if errors else "\n".join(said[-20:]) or f"the command ended with exit code {exit_code}"
        raise _ERRORS.get(exit_code, QnnsweepError)(message) from None


def _end(process: "subprocess.Popen[str]") -> None:
    """End a command as Ctrl-C in a terminal does. Kill it if it does not end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read(stream: Any, lines: list[str], show: Show | None = None) -> None:
    """Collect the lines of a stream until it ends, and show each."""
    for line in stream:
        lines.append(line.rstrip("\n"))
        if show is not None and not line.startswith(_PROGRAM):
            show(lines[-1])


@contextmanager
def _shown(progress: bool) -> Iterator[Show]:
    """Yield the function that shows a line of progress."""
    if not progress:
        yield lambda _line: None
        return
    notebook = _notebook_line()
    if notebook is None:
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    yield notebook
    notebook("")


def _notebook_line() -> Show | None:
    """Return a function that replaces a line below the running cell of a notebook; None outside of notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import Pretty, display  # pyright: ignore[reportMissingImports] - a notebook has it

    handle: Any = display(Pretty(""), display_id=True)
    return lambda line: handle.update(Pretty(line))
