"""The memory and the processor time of the processes of a call."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from qnnsweep.tasks.toolchain.workers.shared_files import FOLDER, private_bytes

Size = TypeVar("Size", int, float)
_OF_CPU_TIMES = 4  # of the process, and of those of its children that have ended: user, system, user, system


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUsage:
    """The memory of the descendants of a guard. A process that ends meanwhile has no memory."""

    guard_pid: int | None
    resident_bytes: int = 0
    """The sum of what is resident per process. Pages that processes share are counted once per process."""
    own_bytes: int = 0
    """The part that the end of the call would free. A fork shares its other pages with its zygote."""
    shared_file_bytes: int = 0
    """The files in the call's own /dev/shm, which the other sizes contain."""


class MemoryLimit:
    """The limit of the memory of one call. Pages that several processes share count only once.

    The memory of the largest process is a lower bound of what a call uses. The sum of proportional set sizes is another
    one: each page is divided among all processes that share it. To read these sizes takes time, so they are read only
    if the sum of the resident sizes is above the limit, and for at most a tenth of the time.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._next_s = 0.0

    def is_exceeded(self, usage: MemoryUsage) -> bool:
        started_s = time.monotonic()
        if usage.resident_bytes <= self._limit_bytes or started_s < self._next_s:
            return False
        largest = max(_sizes(usage.guard_pid, lambda process: process.memory_info().rss), default=0)
        if largest > self._limit_bytes:
            return True
        size = _bytes_outside_folder if usage.shared_file_bytes else _proportional_bytes
        proportional = sum(_sizes(usage.guard_pid, size)) + usage.shared_file_bytes
        self._next_s = time.monotonic() + 10 * (time.monotonic() - started_s)
        return proportional > self._limit_bytes


def memory_usage(guard_pid: int | None, *, shares: bool) -> MemoryUsage:
    """Return the memory of a guard's descendants. `shares`: whether they share pages with a zygote."""
    files = 0 if guard_pid is None else private_bytes(guard_pid)
    resident = sum(_sizes(guard_pid, lambda process: process.memory_info().rss))
    freed = sum(_sizes(guard_pid, lambda process: process.memory_full_info().uss)) if shares else resident
    return MemoryUsage(
        guard_pid=guard_pid, resident_bytes=resident + files, own_bytes=freed + files, shared_file_bytes=files
    )


def processor_s(guard_pid: int | None) -> float:
    """Return the processor time of a guard's descendants, in seconds."""
    return sum(_sizes(guard_pid, lambda process: sum(process.cpu_times()[:_OF_CPU_TIMES])))


def _proportional_bytes(process: Any) -> int:
    return process.memory_full_info().pss


def _bytes_outside_folder(process: Any) -> int:
    """Return the proportional size without the mapped files of /dev/shm, which are counted as files."""
    maps = process.memory_maps(grouped=False)
    return sum(mapped.pss for mapped in maps if not mapped.path.startswith(f"{FOLDER}/"))


def _sizes(guard_pid: int | None, size: Callable[[psutil.Process], Size]) -> list[Size]:
    sizes: list[Size] = []
    with suppress(psutil.Error):
        for process in [] if guard_pid is None else psutil.Process(guard_pid).children(recursive=True):
            with suppress(psutil.Error):
                sizes.append(size(process))
    return sizes
