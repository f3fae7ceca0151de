"""How much memory a program needs at most, with all that it starts."""

from __future__ import annotations

import threading

import psutil

GIB = 2**30
EVERY_S = 0.5


class Peak:
    """The most memory that a process and all it started had, pages that they share counted once."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            total = 0
            try:
                for process in (self._process, *self._process.children(recursive=True)):
                    total += process.memory_full_info().pss
            except psutil.Error:
                continue
            self._most = max(self._most, total)

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most
