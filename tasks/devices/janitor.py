"""The janitor of a hired device: a process that hires a device from a farm, keeps it, and gives it back.

It is a program of its own, so that the device is given back whatever happens to the process that asked for it. It gets
an order as one line of JSON, and prints the line that the farm's command has printed, or a problem. It gives the device
back when its input ends, or when the budget is used up. Until then, a file tells later processes what they must give
back if this one is killed.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TERM_S = 5.0
_TAIL = 300
_BETWEEN_S = 2.0
"""The number of seconds between two attempts to give a device back."""


def longest_release_s(release_s: float, attempts: int) -> float:
    """Return how long all attempts to give a device back take at most, in seconds."""
    return attempts * (release_s + 2 * _TERM_S + _BETWEEN_S)


def main() -> None:
    order: dict[str, Any] = json.loads(sys.stdin.buffer.raw.readline())  # type: ignore[attr-defined]
    # Ctrl-C ends the sweep, which closes the input. With SIG_IGN, the farm's commands would ignore the signals, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if order["is_new"]:
        answer = _acquired(order)
        order["line"] = answer.get("line", "")
        if order["line"]:
            _record(order)
        _say(answer)
    else:  # another janitor, which was killed, has hired the device
        _record(order)
    if order["line"]:
        _keep(order)
    _say({"is_ending": True})
    is_released = _released(order)
    if is_released:
        Path(order["file"]).unlink(missing_ok=True)
    _say({"released": is_released})


def _acquired(order: dict[str, Any]) -> dict[str, str]:
    """Run the command that hires the device. Return its last line, or the problem."""
    _record(order)
    process = _start(order["acquire"], order, stdout=subprocess.PIPE)
    if isinstance(process, str):
        return {"problem": process}
    deadline = time.monotonic() + order["acquire_s"]
    with process:
        out, err = bytearray(), bytearray()
        assert process.stdout is not None
        assert process.stderr is not None
        streams = {process.stdout.fileno(): out, process.stderr.fileno(): err}
        problem = ""
        while streams and not problem and time.monotonic() < deadline:
            ready, _, _ = select.select([*streams, 0], [], [], max(deadline - time.monotonic(), 0))
            if 0 in ready:
                problem = "the sweep has ended"
            for number in ready:
                if number in streams:
                    data = os.read(number, 65536)
                    streams[number] += data[: 2**20 - len(streams[number])]
                    if not data:
                        del streams[number]
        try:
            process.wait(0 if problem else max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            problem = problem or f"it did not end within {order['acquire_s']:g} s"
            _kill(process)
    lines = out.decode(errors="replace").strip().splitlines()
    if not problem and process.returncode != 0:
        problem = f"exit code {process.returncode}: {err.decode(errors='replace').strip()[-_TAIL:]}"
    if not problem and not lines:
        problem = "it printed no line with the endpoint"
    return {"problem": problem} if problem else {"line": lines[-1]}


def _keep(order: dict[str, Any]) -> None:
    """Keep the device until the input ends, or until the budget is used up. Extend the hire from time to time."""
    began = time.monotonic()
    end = began + order["budget_s"] if order["budget_s"] is not None else None
    extend = began + order["extend_every_s"] if order["extend"] else None
    while True:
        moments = [moment for moment in (end, extend) if moment is not None]
        wait = max(min(moments) - time.monotonic(), 0) if moments else None
        if select.select([0], [], [], wait)[0]:
            return
        if end is not None and time.monotonic() >= end:
            return
        if extend is not None and time.monotonic() >= extend:
            _run(order["extend"], order, order["release_s"])
            extend = time.monotonic() + order["extend_every_s"]


def _released(order: dict[str, Any]) -> bool:
    """Run the command that gives the device back, until it succeeds."""
    for attempt in range(order["attempts"]):
        if attempt:
            time.sleep(_BETWEEN_S)
        if _run(order["release"], order, order["release_s"]):
            return True
    return False


def _run(argv: list[str], order: dict[str, Any], deadline_s: float) -> bool:
    process = _start(argv, order, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if isinstance(process, str):
        return False
    try:
        return process.wait(deadline_s) == 0
    except subprocess.TimeoutExpired:
        _kill(process)
        return False


def _start(argv: list[str], order: dict[str, Any], stdout: int, stderr: int = subprocess.PIPE) -> Any:
    environment = os.environ | {"QNNSWEEP_LEASE_NAME": order["name"], "QNNSWEEP_LEASE": order["line"]}
    if order["soc"]:
        environment["QNNSWEEP_SOC"] = order["soc"]
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
        )
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a command and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_S)
            break


def _record(order: dict[str, Any]) -> None:
    """Write what is hired to the file of the order, complete or not at all."""
    file = Path(order["file"])
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"device": order["device"], "line": order["line"], "pid": os.getpid()}))
    partial.replace(file)


def _say(answer: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
