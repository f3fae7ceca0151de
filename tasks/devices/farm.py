"""Which device a cell gets, who holds one now, and which are not to be trusted any more in this run."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from conf.schema import PROBE, DeviceConfig, RunnerKind, SocConfig
from tasks.devices import facts
from tasks.devices.device import LEASES, Device, identity, open_device
from tasks.devices.disk_space import prune
from tasks.devices.native_runner import native_files
from tasks.errors import DeviceError, DeviceProblem
from tasks.storage.partial import is_abandoned, owned_name, sweep

QUARANTINE = "quarantine"
_LOOK_AGAIN_S = 1.0
_TIDY_S = 30.0


class DeviceBusy(Exception):
    """Somebody else, in this process or another, holds the device."""


DeviceLock = Callable[[str], AbstractContextManager[None]]
"""Holds what the text names for as long as the context lasts. Raises DeviceBusy at once when somebody else does."""


class Farm:
    """Devices, each held by one lease at a time. Safe to share between threads."""

    def __init__(
        self, *, host_environment: Mapping[str, str], folder: Path, device_lock: DeviceLock | None = None
    ) -> None:
        """`host_environment`: what a process on this machine needs to find QNN; `folder`: for local devices' work;

        `device_lock`: keeps other processes off a device. Without one only this process's own threads are kept off.
        """
        self._host_environment = dict(host_environment)
        self._folder = folder.absolute()
        self._device_lock = device_lock or (lambda _: contextlib.nullcontext())
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._uses: Counter[str] = Counter()
        self._quarantined: dict[str, DeviceError] = {}
        self._socs: dict[str, str | None] = {}

    @property
    def quarantined(self) -> dict[str, DeviceError]:
        """Devices that failed a cell in this run, and why."""
        with self._changed:
            return dict(self._quarantined)

    def quarantine(self, name: str, why: DeviceError) -> None:
        """Trust the device no more in this run."""
        with self._changed:
            self._quarantined.setdefault(name, why)
            self._changed.notify_all()
        folder = self._folder / QUARANTINE
        folder.mkdir(parents=True, exist_ok=True)
        (folder / owned_name()).write_text(json.dumps({"device": name, "why": str(why)}))

    @contextlib.contextmanager
    def lease(self, configs: Sequence[DeviceConfig], soc: SocConfig | None = None) -> Iterator[Device]:
        """A device of `soc` for this holder alone, from deploy to collect: the least used of the free ones.

        Waits while all that would do are busy. Raises DeviceError when none is left that may be trusted.
        """
        with contextlib.ExitStack() as stack:
            device = None
            unfit: set[str] = set()
            while device is None:
                config = stack.enter_context(
                    self._one_of([each for each in configs if each.name not in unfit], configs)
                )
                try:
                    device = self._prepared(config, soc)
                except DeviceError as error:
                    self.quarantine(config.name, error)
                if device is None:  # quarantined, or of another SoC than the cell's
                    unfit.add(config.name)
                    stack.pop_all().close()
            try:
                yield device
            finally:
                # A lost channel has been reported by whoever used it; a later lease removes what stays now.
                with contextlib.suppress(DeviceError):
                    device.transport.run(["rm", "-rf", "--", device.lease_folder], deadline_s=_TIDY_S)
                device.transport.close()

    @contextlib.contextmanager
    def _one_of(self, able: Sequence[DeviceConfig], asked: Sequence[DeviceConfig]) -> Iterator[DeviceConfig]:
        with contextlib.ExitStack() as hold:
            config = None
            while config is None:
                with self._changed:
                    trusted = [each for each in able if each.name not in self._quarantined]
                    if not trusted:
                        raise self._none_left(asked)
                    free = [each for each in trusted if self._key(each) not in self._held]
                    chosen = sorted(free, key=lambda each: self._uses[each.name])
                config = next((each for each in chosen if self._take(each, hold)), None)
                if config is None:
                    with self._changed:
                        self._changed.wait(_LOOK_AGAIN_S)
            yield config

    def _take(self, config: DeviceConfig, hold: contextlib.ExitStack) -> bool:
        """Hold the device if nobody else does."""
        key = self._key(config)
        with self._changed:
            if key in self._held:
                return False
            self._held.add(key)

        def release() -> None:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

        with contextlib.ExitStack() as taken:
            taken.callback(release)
            try:
                taken.enter_context(self._device_lock(key))
            except DeviceBusy:
                return False
            hold.push(taken.pop_all())
        with self._changed:
            self._uses[config.name] += 1
        return True

    def _prepared(self, config: DeviceConfig, soc: SocConfig | None) -> Device | None:
        """The device, clean and of the right SoC; None when it is another SoC's. Raises DeviceError."""
        native: Mapping[str, Path] = {}
        if config.runner is RunnerKind.native and soc is not None:
            native = native_files(config, soc.arch, os.environ)
        device = open_device(config, host_environment=self._host_environment, folder=self._folder, native=native)
        try:
            if soc is not None and not self._has_soc(config, soc, device):
                device.transport.close()
                return None
            prune(device)
            _remove(device, _abandoned(device))
            device.run(["mkdir", "-p", "--", device.lease_folder])  # whoever looks sees that the device is busy
        except BaseException:
            device.transport.close()
            raise
        return device

    def _has_soc(self, config: DeviceConfig, soc: SocConfig, device: Device) -> bool:
        """A device that says it is another than its configuration says is of no use. Raises DeviceError."""
        if config.soc is None:
            return True
        with self._changed:
            known = config.name in self._socs
        if not known:
            read = facts.ask(device.transport, device.work_folder).soc
            with self._changed:
                self._socs[config.name] = read
        read = self._socs[config.name]
        if config.soc == PROBE:
            if read is None:
                raise DeviceError(f"{config.name} does not say which SoC it is: name it in device.soc")
            return facts.soc_matches(read, soc.name)
        if read is not None and not facts.soc_matches(read, config.soc):
            raise DeviceError(
                f"{config.name} is a {read}, not the {config.soc} that device.soc says", problem=DeviceProblem.WRONG_SOC
            )
        return True

    def _none_left(self, configs: Sequence[DeviceConfig]) -> DeviceError:
        other_soc = DeviceError("it is of another SoC")
        reasons = {config.name: self._quarantined.get(config.name, other_soc) for config in configs}
        if len(configs) == 1:
            (reason,) = reasons.values()
            return DeviceError(str(reason), problem=reason.problem)
        text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return DeviceError(f"no device is left for the cell: {text}")

    def _key(self, config: DeviceConfig) -> str:
        return identity(config, self._folder)


def quarantined_in(folder: Path) -> dict[str, str]:
    """Devices that runs which are going on now do not trust, and why. `folder`: the farm's."""
    sweep(folder / QUARANTINE)
    found = [json.loads(path.read_text()) for path in sorted((folder / QUARANTINE).glob("*"))]
    return {each["device"]: each["why"] for each in found}


def _abandoned(device: Device) -> list[str]:
    """Folders of leases that were held by killed processes of this host."""
    leases = f"{device.work_folder}/{LEASES}"
    listed = device.run(["ls", "-1", leases])  # fails where there never was one
    return [f"{leases}/{name}" for name in listed.stdout.decode(errors="replace").splitlines() if is_abandoned(name)]


def _remove(device: Device, folders: Sequence[str]) -> None:
    if folders:
        device.run(["rm", "-rf", "--", *folders])
