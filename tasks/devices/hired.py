"""Devices that are hired from a farm, such as a cloud of phones, with commands of the user's own.

One hire serves many cells: a device that no cell has used for `lease.idle_s` seconds is given back. If the device's
configuration leaves the SoC open, a hire is for one SoC, and the cells of other SoCs wait until it has ended. A device
is given back before it is hired again, because a farm may have no second one. A janitor, which is a process of its own,
hires the device and gives it back, also after the process of the sweep was killed.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from qnnsweep.conf.constraints import host_address, violations
from qnnsweep.conf.devices import PROBE, DeviceConfig, TransportKind
from qnnsweep.tasks.devices import janitor
from qnnsweep.tasks.devices.device import Hire
from qnnsweep.tasks.devices.lock import DeviceBusy
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.storage.atomic import owner_is_dead, temporary_name

FOLDER = "hired"
_ATTEMPTS = 3
_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class _Held:
    """A device that is hired now."""

    config: DeviceConfig
    """The configuration of the device with the endpoint that the farm named."""
    soc: str | None
    """The SoC for which the farm was asked."""
    janitor: "_Janitor"
    hire: Hire
    users: int = 0
    timer: threading.Timer | None = None


class HiredDevices:
    """The devices that this process has hired. Threads can share them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._guards: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """Maps the name of a device to its lock. While one is hired, which takes minutes, others can be given back."""
        self._hires: dict[str, _Held] = {}
        self._ending: defaultdict[str, list[_Janitor]] = defaultdict(list)
        """Maps the name of a device to the janitors that were told to give it back since it was hired last."""
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        weakref.finalize(self, _dismiss_all, self._hires)
        self._looked_for: set[str] = set()

    @contextmanager
    def endpoint(self, config: DeviceConfig, soc: str | None) -> Generator[tuple[DeviceConfig, Hire]]:
        """Hire the device unless it is hired, and keep it during the context. Yield the configuration of the endpoint.

        Raises DeviceBusy if it is hired for another SoC, and DeviceError if the farm gives no device.
        """
        with self._guards[config.name]:
            self._give_back_what_was_left(config)
            held = self._hires.get(config.name)
            if held is not None and held.janitor.has_ended:  # the budget is used up
                self._end(config.name, self._hires.pop(config.name))
                held = None
            if held is not None and config.soc == PROBE and held.soc != soc:
                raise DeviceBusy
            if held is None:
                held = self._hires[config.name] = self._hired(config, soc)
            if held.timer is not None:
                held.timer.cancel()
            held.users += 1
        try:
            yield held.config, held.hire
        finally:
            with self._guards[config.name]:
                held.users -= 1
                if held.users == 0:
                    held.timer = threading.Timer(config.lease.idle_s, self._end_if_idle, (config.name, held))
                    held.timer.daemon = True
                    held.timer.start()

    def end(self, name: str) -> bool:
        """Give the device back, if it is hired, and return whether it was. The next cell hires one again."""
        with self._guards[name]:
            if (held := self._hires.pop(name, None)) is not None:
                self._end(name, held)
        return held is not None

    def _end_if_idle(self, name: str, held: _Held) -> None:
        with self._guards[name]:
            if held.users == 0 and self._hires.get(name) is held:
                del self._hires[name]
                self._end(name, held)

    def _end(self, name: str, held: _Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        spent_s = time.monotonic() - held.hire.began
        self._spent_s[name] += spent_s
        _LOG.info("%s: giving it back after %.1f min (%s)", name, spent_s / 60, held.hire.name)
        self._dismiss(name, held.janitor)

    def _dismiss(self, name: str, worker: "_Janitor") -> None:
        worker.dismiss()
        self._ending[name].append(worker)

    def _hired(self, config: DeviceConfig, soc: str | None) -> _Held:
        budget_s = self._budget_s(config)
        if budget_s is not None and budget_s <= 0:
            raise DeviceError(f"{config.name}: device.lease.minutes={config.lease.minutes:g} of this run are used up")
        for before in self._ending.pop(config.name, ()):
            before.wait(janitor.longest_release_s(config.lease.release_s, _ATTEMPTS))
        name = temporary_name()
        file = self._folder / f"{name}.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        worker, began = _Janitor(_order(config, file, soc, budget_s)), time.monotonic()
        answer = worker.answer()
        worker.watch(config.name, lambda: self._replace_janitor(config, file, worker))
        try:
            if "line" not in answer:
                raise DeviceError(f"{config.name}: device.lease.acquire gives no device: {answer.get('problem')}")
            endpoint = _endpoint(config, answer["line"])
        except DeviceError:
            self._dismiss(config.name, worker)
            raise
        _LOG.info("%s: hired %s", config.name, answer["line"])
        return _Held(config=endpoint, soc=soc, janitor=worker, hire=Hire(name=name, began=began))

    def _budget_s(self, config: DeviceConfig) -> float | None:
        """Return for how many seconds hires of this run may begin or last; None if there is no limit."""
        minutes = config.lease.minutes
        return None if minutes is None else 60 * minutes - self._spent_s[config.name]

    def _replace_janitor(self, config: DeviceConfig, file: Path, killed: "_Janitor") -> None:
        """Start another janitor for a device. It gives the device back at once if no cell needs it any more."""
        with self._guards[config.name]:
            held = self._hires.get(config.name)
            if held is None or held.janitor is not killed:
                self._give_back(config, file)
                return
            budget_s = self._budget_s(config)
            if budget_s is not None:
                budget_s -= time.monotonic() - held.hire.began
            killed.dismiss()
            held.janitor = _next_janitor(config, file, held.soc, budget_s) or killed

    def _give_back_what_was_left(self, config: DeviceConfig) -> None:
        """Give back what earlier processes hired for this device, if both the process and its janitor were killed.

        The files say what was hired; the command that gives it back is of the configuration, because files are data.
        """
        if config.name in self._looked_for:
            return
        self._looked_for.add(config.name)
        for file in sorted(self._folder.glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                left = json.loads(file.read_text())
                is_left = owner_is_dead(file.stem) and not _is_janitor(int(left["pid"]))
                if is_left and left["device"] == config.name:
                    _LOG.warning("%s: giving back what an earlier sweep has hired: %s", config.name, left["line"])
                    self._give_back(config, file)

    def _give_back(self, config: DeviceConfig, file: Path) -> None:
        if (worker := _next_janitor(config, file, None, None)) is not None:
            self._dismiss(config.name, worker)


def _next_janitor(config: DeviceConfig, file: Path, soc: str | None, budget_s: float | None) -> "_Janitor | None":
    """Return a janitor for what the file tells of, whose janitor was killed; None if the file tells of nothing."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        line = str(json.loads(file.read_text())["line"])
        worker = _Janitor(_order(config, file, soc, budget_s) | {"line": line, "is_new": False})
        worker.watch(config.name)
        return worker
    return None


def _order(config: DeviceConfig, file: Path, soc: str | None, budget_s: float | None) -> dict[str, object]:
    """Return the order for a janitor. `file`: the file that tells of the hire, whose name is the name of the hire."""
    lease = config.lease
    return {
        "device": config.name,
        "name": file.stem,
        "file": str(file),
        "line": "",
        "soc": soc or "",
        "acquire": lease.acquire,
        "extend": lease.extend,
        "release": lease.release,
        "acquire_s": lease.acquire_s,
        "extend_every_s": lease.extend_every_s,
        "release_s": lease.release_s,
        "budget_s": budget_s,
        "attempts": _ATTEMPTS,
        "is_new": True,
    }


def _dismiss_all(hires: Mapping[str, _Held]) -> None:
    for held in hires.values():
        held.janitor.dismiss()


class _Janitor:
    """A janitor at work. It gives its device back when `dismiss` is called, or when this process ends."""

    def __init__(self, order: object) -> None:
        # The janitor is no child of this process, which need not wait for its end.
        command = ["sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", sys.executable, "-I", "-S", janitor.__file__]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        ) as shell:
            assert shell.stdin is not None
            assert shell.stdout is not None
            self._order = os.fdopen(os.dup(shell.stdin.fileno()), "wb")
            self._answers = os.fdopen(os.dup(shell.stdout.fileno()), "rb")
        self._order.write(json.dumps(order).encode() + b"\n")
        self._order.flush()
        self.has_ended = False
        self._gave_back = threading.Event()
        """Set when there is nothing to wait for: all attempts to give the device back are over, or it was killed."""

    def answer(self) -> dict[str, str]:
        """Return what the command that hires a device gave. The janitor has a deadline of its own."""
        with suppress(ValueError):
            answer = json.loads(self._answers.readline())
            if isinstance(answer, dict):
                return answer  # pyright: ignore[reportUnknownVariableType]
        return {"problem": "its janitor did not answer"}

    def watch(self, name: str, when_killed: Callable[[], object] | None = None) -> None:
        """Wait in a thread for the end of the hire, and say if the janitor could not give its device back.

        `when_killed`: is called if the janitor was killed before it began to give the device back.
        """

        def wait() -> None:
            with self._answers:
                is_ending = self._answers.readline()
                self.has_ended = True
                if not is_ending and when_killed is not None:
                    self._gave_back.set()  # before the call, which waits for a thread that may wait for this janitor
                    when_killed()
                    return
                released = self._answers.read()
            self._gave_back.set()
            if b"true" not in released:
                _LOG.warning("%s: device.lease.release failed; the next sweep with these artifacts tries again", name)

        threading.Thread(target=wait, daemon=True, name=f"janitor of {name}").start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the janitor, which was told to give its device back, has done so or cannot."""
        self._gave_back.wait(timeout_s)

    def dismiss(self) -> None:
        with suppress(OSError):
            self._order.close()


def _endpoint(config: DeviceConfig, line: str) -> DeviceConfig:
    """Return the configuration of a device with the endpoint in a line of JSON. Raises DeviceError."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    match said:
        case {"ssh": str(address)} if not host_address(address):
            return replace(config, transport=TransportKind.ssh, address=address)
        case {"serial": str(serial)} if serial and not serial.startswith("-"):
            server: object = said.get("adb_server")
            endpoint = replace(config, transport=TransportKind.adb, address=serial, adb_server=server)
            if next(violations(endpoint, "device"), None) is None:
                return endpoint
        case _:
            pass
    raise DeviceError(
        f"{config.name}: the last line of device.lease.acquire must be JSON such as "
        f'{{"adb_server": "127.0.0.1:5037", "serial": "1a2b3c"}} or {{"ssh": "user@host:22"}}, not {line[:200]!r}'
    )


def _is_janitor(pid: int) -> bool:
    try:
        return Path(janitor.__file__).name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
