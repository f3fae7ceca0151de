"""What a toolchain call can do, good and bad. Imported in workers, hence beside the tests and not in one."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from qnnsweep.tasks.errors import DeviceError, EnvironmentUnusable, EvidenceError, RequestError
from qnnsweep.tasks.toolchain.workers.output import output_length, output_since

_libc = ctypes.CDLL(None)
LINES_BEFORE = 40


def give(value: object) -> object:
    print("giving it back")
    return value


def where_and_as_whom() -> tuple[str, list[str], int, int, str]:
    """Working directory, the files in it, process id, session id, QNN's folder."""
    Path("left_behind").write_bytes(b"scratch")
    here = Path.cwd()
    return (
        str(here),
        sorted(path.name for path in here.iterdir()),
        os.getpid(),
        os.getsid(0),
        os.environ["QNN_SDK_ROOT"],
    )


def raise_key_error() -> None:
    print("about to look it up")
    raise KeyError("absent")


def raise_in_a_pass() -> None:
    """Run a pass that fails at a node, as an edge program's passes do."""
    import torch
    from torch.fx.passes.infra.pass_manager import PassManager

    from qnnsweep.tasks.toolchain.nodes import naming_nodes

    def reads_scales(module: torch.fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "call_function":
                node.meta["stack_trace"] = 'File "/home/me/net.py", line 8, in forward\n    return x * 2'
                node.meta["scale"]

    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), 2)))
    with naming_nodes():
        PassManager(passes=[reads_scales])(torch.fx.GraphModule({}, graph))


def raise_without_a_word() -> None:
    raise AssertionError


def refuse(kind: str) -> None:
    errors = {
        "request": RequestError,
        "environment": EnvironmentUnusable,
        "evidence": EvidenceError,
        "device": DeviceError,
    }
    raise errors[kind]("not like this")


def leave(code: int) -> None:
    sys.exit(code)


def leave_at_once(code: int) -> None:
    os._exit(code)


def abort_after_words() -> None:
    for number in range(LINES_BEFORE):
        print(f"line {number}")
    _libc.puts(b"native last words")
    os.abort()


def read_address_zero() -> None:
    print("reaching out")
    ctypes.string_at(0)


def load_qnn_without_memory() -> None:
    import resource

    from executorch.backends.qualcomm.python import PyQnnManagerAdaptor

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
    PyQnnManagerAdaptor.GetQnnSdkBuildId("libQnnHtp.so")


def give_what_cannot_be_sent() -> object:
    return lambda: None


def print_everywhere() -> None:
    print("python out")
    _libc.puts(b"native out")
    print("python err", file=sys.stderr)
    os.write(2, b"native err\n")
    subprocess.run(["echo", "a process of its own"], check=True)
    _libc.printf(b"no newline at the end")


def hang(pids: str) -> None:
    """Start a process and a fork, write their ids and the own one to `pids`, and sleep."""
    started = subprocess.Popen(["sleep", "600"])
    forked = os.fork()
    if not forked:
        time.sleep(600)
        os._exit(0)
    fresh = Path(f"{pids}.fresh")
    fresh.write_text(f"{os.getpid()} {started.pid} {forked}")
    fresh.replace(pids)
    print("going to sleep", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def hang_holding_the_interpreter(pids: str) -> None:
    """Start a process, write its id and the own one to `pids`, and sleep in native code: no Python thread runs."""
    started = subprocess.Popen(["sleep", "600"])
    fresh = Path(f"{pids}.fresh")
    fresh.write_text(f"{os.getpid()} {started.pid}")
    fresh.replace(pids)
    ctypes.PyDLL(None).sleep(600)


def leave_a_process_running(how: str) -> int:
    """Start a process that would outlive this one, then end `how`. Gives the process's id."""
    forked = os.fork()
    if not forked:
        time.sleep(600)
        os._exit(0)
    Path("forked").write_text(str(forked))
    print(f"forked {forked}", flush=True)
    if how == "abort":
        os.abort()
    return forked


def read_own_output() -> list[str]:
    """Read back a part of the log after each of three steps."""
    parts = []
    print("before")
    for step in ("both", "neither", "native"):
        start = output_length()
        if step == "both":
            print("python")
        if step != "neither":
            _libc.printf(b"native\n")
        parts.append(output_since(start))
    return parts


def print_mebibytes(count: int) -> int:
    """Print a first line, so many MiB, and a last line."""
    print("the first line")
    for _ in range(count):
        os.write(1, b"x" * (1 << 20))
    print("\nthe last line")
    return count


def print_without_end() -> None:
    print("the first line")
    while True:
        os.write(1, b"again and again\n" * 4096)


def leave_a_daemon(how: str, pids: str) -> str:
    """Start a process with a session of its own whose parent ends at once, write its id to `pids`, and end `how`."""
    sleeper = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    code = f"import subprocess; print({sleeper}.pid, file=open({pids!r}, 'w'))"
    subprocess.run([sys.executable, "-c", code], check=True, start_new_session=True)
    if how == "abort":
        os.abort()
    return how


def eat_memory_in_a_daemon() -> None:
    """Let a process with a session of its own, whose parent has ended, use memory without end."""
    eater = f"import sys; sys.path[:] = {sys.path!r}; import faulty_calls; faulty_calls.eat_memory()"
    starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {eater!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", starter], check=True, start_new_session=True)
    time.sleep(60)


def share_memory_with_forks(mebibytes: int, forks: int) -> int:
    """Let forks of this process sleep for a while, which share its memory."""
    shared = os.urandom(1 << 20) * mebibytes
    children = []
    for _ in range(forks):
        pid = os.fork()
        if not pid:
            time.sleep(600)
            os._exit(0)
        children.append(pid)
    time.sleep(2)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(shared) >> 20


def eat_memory_in_forks(mebibytes: int, forks: int) -> None:
    """Let each of some forks use memory that it shares with no other process."""
    for _ in range(forks):
        if not os.fork():
            eaten = os.urandom(1 << 20) * mebibytes
            time.sleep(600)
            os._exit(len(eaten) % 2)
    time.sleep(60)


def _pipe_of_the_answer() -> int:
    connections = [thing for thing in gc.get_objects() if type(thing) is Connection]
    (answers,) = [connection for connection in connections if not connection.closed and not connection.readable]
    return answers.fileno()


def send_half_an_answer() -> None:
    """Write the beginning of a message into the pipe of this call's answer, and sleep."""
    os.write(_pipe_of_the_answer(), (1000).to_bytes(8, "big") + b"half")
    time.sleep(600)


def send_nonsense() -> None:
    """Write what is no message into the pipe of this call's answer."""
    os.write(_pipe_of_the_answer(), (8).to_bytes(8, "big") + b"nonsense")


def remove_scratch_folder(value: object) -> object:
    """Remove the working directory and put a pipe, which blocks its readers, where the folder was."""
    folder = Path.cwd()
    os.chdir("/")
    shutil.rmtree(folder)
    os.mkfifo(folder)
    print("removed")
    return value


def raise_what_is_no_exception(name: str) -> None:
    raise {"KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit, "Unusual": Unusual}[name]("stop")


class Unusual(BaseException):
    """An error that `except Exception` does not catch."""


def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(b"x" * (64 << 20))
        time.sleep(0.02)


def fill_shared_folder(mebibytes: int) -> str:
    """Write files to /dev/shm and close them, so that no process has them. Return the name of the last file."""
    for number in range(mebibytes // 32):
        path = Path(f"/dev/shm/qnnsweep-test-{os.getpid()}-{number}")
        path.write_bytes(b"x" * (32 << 20))
        time.sleep(0.02)
    return path.name


def map_shared_file(mebibytes: int) -> int:
    """Keep a file of /dev/shm mapped for some seconds, with all its pages resident."""
    path = Path(f"/dev/shm/qnnsweep-test-{os.getpid()}")
    with path.open("w+b") as file:
        file.truncate(mebibytes << 20)
        with mmap.mmap(file.fileno(), 0) as mapped:
            for start in range(0, len(mapped), 4096):
                mapped[start] = 1
            time.sleep(3)
            return len(mapped) >> 20


def count_company(folder: str) -> int:
    """Say one is here, stay long enough for others to be seen, and give the most seen at once."""
    mine = Path(folder, str(os.getpid()))
    mine.touch()
    most = 0
    for _ in range(10):
        most = max(most, len(list(Path(folder).iterdir())))
        time.sleep(0.05)
    mine.unlink()
    return most


def make_zygote(folder: str) -> list[str]:
    """Leave a note of one's process in `folder`, and give what calls can stand on."""
    print("the zygote is warm")
    Path(folder, f"zygote-{os.getpid()}").touch()
    return ["made once"]


def add_to(value: list[str], word: str) -> tuple[list[str], int, int, str]:
    """Change what one stands on; give it, one's process and session ids and working folder."""
    print(f"adding {word}")
    value.append(word)
    return value, os.getpid(), os.getsid(0), str(Path.cwd())


def in_fork(_value: object, name: str, *arguments: object) -> object:
    """Another function of this module, called in a fork of a zygote."""
    return globals()[name](*arguments)


def kill_this_process(folder: str, times: int, whom: str = "worker", number: int = signal.SIGKILL) -> int:
    """Send a signal to the own process or its guard, the first `times` times. Then return how often it started."""
    starts = len(list(Path(folder).iterdir())) + 1
    Path(folder, f"start-{starts}").touch()
    if starts <= times:
        depth = {"worker": 0, "guard": 1}[whom]
        family = [psutil.Process(), *psutil.Process().parents()]
        os.kill(family[depth].pid, number)
        time.sleep(600)
    return starts


def kill_the_zygote(_value: object) -> None:
    """Kill the parent of this process's guard."""
    os.kill(psutil.Process().parents()[1].pid, signal.SIGKILL)
