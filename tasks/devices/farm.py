"""A farm of devices: it selects a device for a cell, leases it to one holder, and quarantines failed devices."""

import contextlib
import copy
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qnnsweep.conf.devices import PROBE, DeviceConfig, RunnerKind
from qnnsweep.conf.schema import SocConfig
from qnnsweep.tasks.devices import facts
from qnnsweep.tasks.devices.device import LEASES, Device, open_device, transport_of
from qnnsweep.tasks.devices.disk_space import claim, prune
from qnnsweep.tasks.devices.hired import HiredDevices
from qnnsweep.tasks.devices.local import StartSupervisor
from qnnsweep.tasks.devices.lock import DeviceBusy, locked
from qnnsweep.tasks.devices.native_runner import native_files
from qnnsweep.tasks.devices.transport import RunRequest, require_success
from qnnsweep.tasks.errors import DeviceError, DeviceProblem, EnvironmentUnusable, LeaseLost, QnnsweepError
from qnnsweep.tasks.storage.atomic import owner_of, remove_stale, temporary_name, write_atomically

QUARANTINE = "quarantine"
_LOG = logging.getLogger(__name__)
_LONGEST_REASON = 1000
_POLL_S = 1.0
_MOST_HIRED = 3
"""A device is hired so many times if it fails each time."""
_MOST_LOST = 5
"""A device whose lease is lost so many times in a run is not used any more."""
_CLEANING_S = 30.0


class Farm:
    """Devices, each of which has at most one lease at a time. Threads can share a farm."""

    def __init__(
        self, *, host_environment: Mapping[str, str], folder: Path, fork: StartSupervisor | None = None
    ) -> None:
        """Create the farm of a run.

        `host_environment`: the variables that a process on this machine needs to find QNN.
        `folder`: the folder for local devices' work and for the record of quarantined devices.
        `fork`: starts Python programs on this machine; see `open_device`.
        """
        self._fork = fork
        self._host_environment = dict(host_environment)
        self._folder = folder.absolute()
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._waited: set[str] = set()
        self._uses: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._hired = HiredDevices(self._folder)
        self._quarantined: dict[str, DeviceError] = {}

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

    def failed(self, name: str, why: DeviceError) -> None:
        """Quarantine a device that failed. The loss of a lease is no failure of the device, unless it is repeated."""
        is_hired = self._hired.end(name)  # the farm may have taken it back; another one can be hired
        if isinstance(why, LeaseLost) or is_hired:
            with self._changed:
                self._lost[name] += 1
                lost = self._lost[name]
            if lost < (_MOST_HIRED if is_hired else _MOST_LOST):
                _LOG.warning("%s: %s; the cell starts again", name, why)
                return
        self.quarantine(name, why)

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
            yield self._leased(configs, soc, stack)

    def _leased(self, configs: Sequence[DeviceConfig], soc: SocConfig | None, lease: contextlib.ExitStack) -> Device:
        """Return a device that is held until `lease` is closed."""
        unfit: set[str] = set()
        while True:
            is_busy = True
            for config in self._free(configs, unfit):
                with contextlib.ExitStack() as stack:
                    try:
                        device = self._held_device(config, soc, stack)
                        if device is not None:
                            lease.push(stack.pop_all())
                            return device
                        unfit.add(config.name)
                    except DeviceBusy as busy:
                        self._say_that_another_process_holds(config, busy.holder)
                        continue
                    except DeviceError as error:
                        self.failed(config.name, error)
                    except QnnsweepError:
                        raise
                    except Exception as error:  # noqa: BLE001 - a device may answer anything
                        message = f"{config.name} cannot be used: {type(error).__name__}: {error}"
                        self.failed(config.name, DeviceError(message[:_LONGEST_REASON]))
                is_busy = False
            if is_busy:
                with self._changed:
                    self._changed.wait(_POLL_S)

    def _free(self, configs: Sequence[DeviceConfig], unfit: Collection[str]) -> list[DeviceConfig]:
        """Return the devices that no thread of this process holds, those first that were leased least often."""
        with self._changed:
            trusted = [config for config in configs if config.name not in {*self._quarantined, *unfit}]
            if not trusted:
                raise self._none_left(configs)
            free = [config for config in trusted if self._key(config) not in self._held]
            return sorted(free, key=lambda config: self._uses[config.name])

    def _say_that_another_process_holds(self, config: DeviceConfig, holder: str) -> None:
        """Log once per device why a cell waits for it. Nothing is logged about a device that this process holds."""
        if not holder:
            return
        with self._changed:
            is_new = config.name not in self._waited
            self._waited.add(config.name)
        if is_new:
            _LOG.warning("waiting for the device %s, which another process uses (%s)", config.name, holder)

    def _held_device(self, config: DeviceConfig, soc: SocConfig | None, hold: contextlib.ExitStack) -> Device | None:
        """Return the device, which is held until `hold` is closed, with a clean work folder; None for another SoC.

        Raises DeviceBusy and DeviceError.
        """
        hold.enter_context(self._held_here(self._key(config)))
        hire = None
        if config.lease.acquire:
            config, hire = hold.enter_context(self._hired.endpoint(config, soc.name if soc else None))
        native: Mapping[str, Path] = {}
        if config.runner is RunnerKind.native and soc is not None:
            native = native_files(config, soc.arch, os.environ)
        device = open_device(
            config, host_environment=self._host_environment, folder=self._folder, native=native, fork=self._fork
        )
        hold.callback(device.transport.close)
        is_hosted = config.runner is RunnerKind.aihub  # the transport goes to this machine, which is another device
        read = facts.UNKNOWN if is_hosted else facts.read_facts(device.transport, device.work_folder)
        if soc is not None and not _has_soc(config, soc, read):
            return None
        claim(device)
        hold.enter_context(locked(device))
        prune(device)
        _remove_other_leases(device)
        require_success(device.run(["mkdir", "--", device.lease_folder]), f"{device.name}: cannot create a folder")
        hold.callback(_remove_lease_folder, device)
        with self._changed:
            self._uses[config.name] += 1
        return replace(device, device_id=read.device_id, hire=hire)

    @contextlib.contextmanager
    def _held_here(self, key: str) -> Iterator[None]:
        """Hold a device in this process. Raises DeviceBusy if another thread holds it."""
        with self._changed:
            if key in self._held:
                raise DeviceBusy
            self._held.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

    def _none_left(self, configs: Sequence[DeviceConfig]) -> DeviceError:
        other_soc = DeviceError("it has another SoC")
        reasons = {config.name: self._quarantined.get(config.name, other_soc) for config in configs}
        if len(configs) == 1:
            (reason,) = reasons.values()
            return DeviceError(str(reason), problem=reason.problem)
        text = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return DeviceError(f"no device is left for the cell: {text}")

    def _key(self, config: DeviceConfig) -> str:
        """Return text that names the device, so that threads of this process do not all ask the device for its lock."""
        if config.lease.acquire:
            return f"hired {config.name}"
        return transport_of(config.transport).identity(config, self._folder)


def _has_soc(config: DeviceConfig, soc: SocConfig, read: facts.Facts) -> bool:
    """Return whether the device has the SoC. Raises DeviceError if the device contradicts `device.soc`."""
    if config.soc is None:
        return True
    if config.soc == PROBE:
        if read.soc is None:
            raise DeviceError(f"{config.name} does not report its SoC: name it in device.soc")
        return facts.soc_matches(read.soc, soc.name)
    if read.soc is not None and not facts.soc_matches(read.soc, config.soc):
        raise DeviceError(
            f"{config.name} reports the SoC {read.soc}, but device.soc is {config.soc}", problem=DeviceProblem.WRONG_SOC
        )
    return True


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


def _remove_other_leases(device: Device) -> None:
    """Remove the folders of leases that have ended: whoever created them does not hold the device any more."""
    leases = f"{device.work_folder}/{LEASES}"
    names = device.run(["ls", "-1", leases]).stdout.decode(errors="replace").splitlines()
    if ended := [f"{leases}/{name}" for name in names if owner_of(name) is not None]:
        device.run(["rm", "-rf", "--", *ended])


def _remove_lease_folder(device: Device) -> None:
    # If the channel or the lock is lost, the holder has reported the loss, and a later lease removes the folder.
    with contextlib.suppress(DeviceError):
        device.transport.run(RunRequest(["rm", "-rf", "--", device.lease_folder], deadline_s=_CLEANING_S))
