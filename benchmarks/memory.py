"""The peak memory of a program and of the processes that it starts."""

from __future__ import annotations

import threading

import psutil

EVERY_S = 0.5


class Peak:
    """The peak memory of a process and its descendants. Shared pages are counted once."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._peak = 0
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
            self._peak = max(self._peak, total)

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._peak
