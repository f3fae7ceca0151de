"""A farm of one device that is for hire: a program that qnnsweep starts, in the place of a cloud's own program."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qnnsweep.conf.devices import DeviceConfig, LeaseConfig, TransportKind

# Its faults are the files of its folder, which are Python code. With the file `once`, a fault happens once.
_PROGRAM = """
import json, os, sys, time
from pathlib import Path
verb, folder, endpoint = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
def note(word):
    name, line = (os.environ.get(f"QNNSWEEP_LEASE{end}", "") for end in ("_NAME", ""))
    with (folder / "log").open("a") as log:
        log.write(json.dumps([word, name, line, time.time()]) + "\\n")
note(verb)
fault = folder / verb
if fault.exists():
    text = fault.read_text()
    if (folder / "once").exists():
        fault.unlink()
    exec(text)
if verb == "acquire":
    print("the farm looks for a device")
    print(endpoint, flush=True)
note(verb + "d")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line of the farm's log. `word`: `acquire` when the command begins, `acquired` when it has succeeded."""

    word: str
    name: str
    """The name of the hire."""
    line: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Cloud:
    folder: Path

    def start(self) -> Cloud:
        self.folder.mkdir(parents=True)
        (self.folder / "farm.py").write_text(_PROGRAM)
        return self

    def fail(self, verb: str, code: str, *, once: bool = False) -> None:
        """Let a command run this code before it does its work."""
        (self.folder / verb).write_text(code)
        if once:
            (self.folder / "once").touch()

    @property
    def log(self) -> list[Entry]:
        """The commands that began and those that succeeded, in their order."""
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        keys = ("word", "name", "line", "time_s")
        return [Entry(**dict(zip(keys, json.loads(line), strict=True))) for line in lines]

    @property
    def commands(self) -> list[str]:
        """The commands that began, in their order."""
        return [entry.word for entry in self.log if entry.word in ("acquire", "extend", "release")]

    def hired(self, config: DeviceConfig, **settings: Any) -> DeviceConfig:
        """Return a configuration of the device that hires it from this farm."""
        is_board = config.transport is TransportKind.ssh
        endpoint = {"ssh": config.address} if is_board else {"serial": config.address, "adb_server": config.adb_server}
        words = [sys.executable, "-I", "-S", str(self.folder / "farm.py")]
        verbs = ("acquire", "extend", "release")
        commands = {verb: [*words, verb, str(self.folder), json.dumps(endpoint)] for verb in verbs}
        lease = LeaseConfig(**{**commands, "idle_s": 1.0, "release_s": 5.0, **settings})
        return replace(config, address=None, adb_server=None, lease=lease)
