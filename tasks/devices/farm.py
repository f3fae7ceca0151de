"""A farm of devices: it selects a device for a cell, leases it to one holder, and quarantines failed devices."""

import contextlib
import copy
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from qnnsweep.conf.schema import PROBE, DeviceConfig, RunnerKind, SocConfig
from qnnsweep.tasks.devices import facts
from qnnsweep.tasks.devices.device import LEASES, Device, open_device, transport_of
from qnnsweep.tasks.devices.disk_space import prune
from qnnsweep.tasks.devices.local import StartSupervisor
from qnnsweep.tasks.devices.native_runner import native_files
from qnnsweep.tasks.devices.transport import RunRequest
from qnnsweep.tasks.errors import DeviceError, DeviceProblem, EnvironmentUnusable, QnnsweepError
from qnnsweep.tasks.storage.atomic import owner_is_dead, remove_stale, temporary_name, write_atomically

QUARANTINE = "quarantine"
_LOG = logging.getLogger(__name__)
_LONGEST_REASON = 1000
_POLL_S = 1.0
_CLEANING_S = 30.0


class DeviceBusy(Exception):
    """The device is held by another holder, in this process or in another process."""


DeviceLock = Callable[[str], AbstractContextManager[None]]
"""A function from a device's identity to its lock. Entering the lock raises DeviceBusy at once if it is held."""


class Farm:
    """Devices, each of which has at most one lease at a time. Threads can share a farm."""

    def __init__(
        self,
        *,
        host_environment: Mapping[str, str],
        folder: Path,
        device_lock: DeviceLock | None = None,
        fork: StartSupervisor | None = None,
    ) -> None:
        """Create the farm of a run.

        `host_environment`: the variables that a process on this machine needs to find QNN.
        `folder`: the folder for local devices' work and for the record of quarantined devices.
        `device_lock`: locks a device against other processes; by default, a device is locked only in this process.
        `fork`: starts Python programs on this machine; see `open_device`.
        """
        self._fork = fork
        self._host_environment = dict(host_environment)
        self._folder = folder.absolute()
        self._device_lock = device_lock or (lambda _: contextlib.nullcontext())
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._waited: set[str] = set()
        self._uses: Counter[str] = Counter()
        self._quarantined: dict[str, DeviceError] = {}
        self._socs: dict[str, str | None] = {}

    def with_environment(self, host_environment: Mapping[str, str], fork: StartSupervisor | None = None) -> "Farm":
        """Return this farm with other variables for processes on this machine. Both share all leases and devices."""
        farm = copy.copy(self)
        farm._host_environment, farm._fork = dict(host_environment), fork
        return farm

    @property
    def quarantined(self) -> dict[str, DeviceError]:
        """Maps the name of every device that failed in this run to its error."""
        with self._changed:
            return dict(self._quarantined)

    def quarantine(self, name: str, why: DeviceError) -> None:
        """Exclude a device for the rest of this run."""
        with self._changed:
            self._quarantined.setdefault(name, why)
            self._changed.notify_all()
        entry = json.dumps({"device": name, "why": str(why)})
        try:
            write_atomically(self._folder / QUARANTINE / temporary_name(), entry.encode(), partial=self._folder)
        except (EnvironmentUnusable, OSError) as error:
            # Only `qnnsweep devices` reads the file. The device is excluded from this run without it.
            _LOG.warning("the quarantine of %s cannot be recorded: %s", name, error)

    @contextlib.contextmanager
    def lease(self, configs: Sequence[DeviceConfig], soc: SocConfig | None = None) -> Iterator[Device]:
        """Lease the free device of `soc` that has been leased least often. The lease lasts from deploy to collect.

        Waits while all suitable devices are busy. Raises DeviceError when no suitable device is left.
        """
        with contextlib.ExitStack() as stack:
            device = None
            unfit: set[str] = set()
            while device is None:
                candidates = [config for config in configs if config.name not in unfit]
                config = self._hold_one_of(candidates, configs, stack)
                try:
                    device = self._prepared(config, soc)
                except DeviceError as error:
                    self.quarantine(config.name, error)
                except QnnsweepError:
                    raise
                except Exception as error:  # noqa: BLE001 - a device may answer anything
                    message = f"{config.name} cannot be used: {type(error).__name__}: {error}"
                    self.quarantine(config.name, DeviceError(message[:_LONGEST_REASON]))
                if device is None:  # it is quarantined, or has another SoC than the cell
                    unfit.add(config.name)
                    stack.pop_all().close()
            try:
                yield device
            finally:
                # If the channel is lost, the holder has reported the loss, and a later lease removes the folder.
                with contextlib.suppress(DeviceError):
                    removal = RunRequest(["rm", "-rf", "--", device.lease_folder], deadline_s=_CLEANING_S)
                    device.transport.run(removal)
                device.transport.close()

    def _hold_one_of(
        self, candidates: Sequence[DeviceConfig], configs: Sequence[DeviceConfig], hold: contextlib.ExitStack
    ) -> DeviceConfig:
        """Hold one of the candidates until `hold` is closed. `configs`: all devices that the cell may use."""
        while True:
            with self._changed:
                trusted = [config for config in candidates if config.name not in self._quarantined]
                if not trusted:
                    raise self._none_left(configs)
                free = [config for config in trusted if self._key(config) not in self._held]
                free.sort(key=lambda config: self._uses[config.name])
            for config in free:
                if self._take(config, hold):
                    return config
            self._say_that_another_process_holds(free)
            with self._changed:
                self._changed.wait(_POLL_S)

    def _say_that_another_process_holds(self, devices: Sequence[DeviceConfig]) -> None:
        """Log once per device why a cell waits for it. Nothing is logged about a device that this process holds."""
        with self._changed:
            others = [config for config in devices if self._key(config) not in self._held]
            new = [config for config in others if config.name not in self._waited]
            self._waited.update(config.name for config in new)
        for config in new:
            _LOG.warning("waiting for the device %s, which another process uses", config.name)

    def _take(self, config: DeviceConfig, hold: contextlib.ExitStack) -> bool:
        """Hold the device until `hold` is closed. Return False if another holder has the device."""
        key = self._key(config)
        with self._changed:
            if key in self._held:
                return False
            self._held.add(key)

        def release() -> None:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

        with contextlib.ExitStack() as locks:
            locks.callback(release)
            try:
                locks.enter_context(self._device_lock(key))
            except DeviceBusy:
                return False
            hold.push(locks.pop_all())
        with self._changed:
            self._uses[config.name] += 1
        return True

    def _prepared(self, config: DeviceConfig, soc: SocConfig | None) -> Device | None:
        """Open and clean the device; return None if it has another SoC. Raises DeviceError."""
        native: Mapping[str, Path] = {}
        if config.runner is RunnerKind.native and soc is not None:
            native = native_files(config, soc.arch, os.environ)
        device = open_device(
            config, host_environment=self._host_environment, folder=self._folder, native=native, fork=self._fork
        )
        try:
            if soc is not None and not self._has_soc(config, soc, device):
                device.transport.close()
                return None
            prune(device)
            _remove_stale_leases(device)
            device.run(["mkdir", "-p", "--", device.lease_folder])  # marks the device as busy for `qnnsweep devices`
        except BaseException:
            device.transport.close()
            raise
        return device

    def _has_soc(self, config: DeviceConfig, soc: SocConfig, device: Device) -> bool:
        """Return whether the device has the SoC. Raises DeviceError if the device contradicts `device.soc`."""
        if config.soc is None:
            return True
        if config.name not in self._socs:
            self._socs[config.name] = facts.read_facts(device.transport, device.work_folder).soc
        reported = self._socs[config.name]
        if config.soc == PROBE:
            if reported is None:
                raise DeviceError(f"{config.name} does not report its SoC: name it in device.soc")
            return facts.soc_matches(reported, soc.name)
        if reported is not None and not facts.soc_matches(reported, config.soc):
            raise DeviceError(
                f"{config.name} reports the SoC {reported}, but device.soc is {config.soc}",
                problem=DeviceProblem.WRONG_SOC,
            )
        return True

    def _none_left(self, configs: Sequence[DeviceConfig]) -> DeviceError:
        other_soc = DeviceError("it has another SoC")
        reasons = {config.name: self._quarantined.get(config.name, other_soc) for config in configs}
        if len(configs) == 1:
            (reason,) = reasons.values()
            return DeviceError(str(reason), problem=reason.problem)
        text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return DeviceError(f"no device is left for the cell: {text}")

    def _key(self, config: DeviceConfig) -> str:
        """Return text that identifies the physical device. The text is the same for two configurations of one phone."""
        return transport_of(config.transport).identity(config, self._folder)


def quarantined_in(folder: Path) -> dict[str, str]:
    """Map the name of every device that an active run has quarantined to the reason. `folder`: the farm's folder.

    A file that cannot be read counts as no quarantine.
    """
    quarantined: dict[str, str] = {}
    for stale in (folder, folder / QUARANTINE):
        remove_stale(stale)
    for path in sorted((folder / QUARANTINE).glob("*")):
        try:
            entry = json.loads(path.read_bytes())
            quarantined[str(entry["device"])] = str(entry["why"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            _LOG.warning("%s cannot be read, so it quarantines no device: %s", path, error)
    return quarantined


def _remove_stale_leases(device: Device) -> None:
    """Remove the folders of leases whose holder was a process of this host and no longer runs."""
    leases = f"{device.work_folder}/{LEASES}"
    names = device.run(["ls", "-1", leases]).stdout.decode(errors="replace").splitlines()  # none before the first lease
    if stale := [f"{leases}/{name}" for name in names if owner_is_dead(name)]:
        device.run(["rm", "-rf", "--", *stale])
