"""The lock of a device, which is on the device itself: a board has one lock, whatever names, addresses and work folders
it has, and whichever processes and hosts use it.

The file `holder` has the holder's name and the end of its lease, in seconds since the device started. An flock protects
each change of the file. A holder renews its lease. If it does not, another holder may take the lock, and the fence of
`qnnsweep.tasks.devices.transport` stops every command of the earlier holder.
"""

import logging
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from qnnsweep.conf.devices import TransportKind
from qnnsweep.tasks.devices.device import Device
from qnnsweep.tasks.devices.transport import Fence, RunRequest, require_success
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.storage.atomic import owner_is_dead, owner_of, temporary_name

LEASE_S = 90
"""The number of seconds for which a lock is held after its last renewal."""
RENEWALS = 4
"""How often a lock is renewed in LEASE_S seconds."""
_DEADLINE_S = 20.0
_LONGEST_NAME = 200
_ANSWER = re.compile(r"(?:(held|free|foreign) (.{1,4096})|(busy|lost) ?(\S*))\n")
"""A word with the folder of the lock, whose path can have spaces, or with the name of a holder, which has none."""
_LOG = logging.getLogger(__name__)
_held: set[str] = set()
"""The names under which this process holds locks."""

# A folder of another user is not used: its owner could replace a file in it by a link. A lease that ends much later
# than any lease could is one from before a restart of a device that does not tell its boot id.
_SCRIPT = """\
umask 022
verb=$1 place=$2 token=$3 seconds=$4 dead=$5 work_folder=$6
if [ -z "$place" ]; then
  for place in /data/local/tmp /run/lock /tmp "$work_folder"; do [ -d "$place" ] && [ -w "$place" ] && break; done
fi
lock=$place/qnnsweep-lock
[ "$verb" = show ] || mkdir -p -- "$lock" || exit
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null) || boot=unknown
now() { read -r now _ </proc/uptime && now=${now%%.*}; }
look() {
  held= until= boot_then=
  [ ! -r "$lock/holder" ] || read -r held until boot_then _ <"$lock/holder"
  case "$until" in ''|*[!0-9]*|????????????*) until=0 ;; esac
  now && left=$((until - now))
  [ "$boot_then" = "$boot" ] && [ "$left" -le $((seconds * 10)) ] || left=0
}
write() { printf '%s %s %s\\n' "$token" $((now + seconds)) "$boot" >"$lock/holder"; }
if [ "$verb" != show ] && { [ -L "$lock" ] || [ ! -O "$lock" ]; }; then
  look
  if [ "$left" -gt 0 ]; then echo "busy $held"; else echo "foreign $lock"; fi
  exit 0
fi
if [ "$verb" != show ]; then { exec 7>>"$lock/mutex" && flock 7; } || exit; fi
look
case "$verb" in
  take)
    case "$held" in ''|"$dead") left=0 ;; esac
    if [ "$left" -gt 0 ]; then echo "busy $held"; else write && echo "held $lock"; fi ;;
  renew) if [ "$held" = "$token" ]; then write && echo "held $lock"; else echo "lost $held"; fi ;;
  release) [ "$held" != "$token" ] || : >"$lock/holder"; echo "free $lock" ;;
  show) if [ "$left" -gt 0 ]; then echo "busy $held"; else echo "free $lock"; fi ;;
esac
"""


class DeviceBusy(Exception):
    """The device is held by another holder, in this process or in another process.

    Attributes: `holder` (the name of the other holder; empty if it is in this process).
    """

    def __init__(self, holder: str = "") -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def locked(device: Device) -> Generator[None]:
    """Hold the lock of a device. Until the end of the context, its transport runs commands only while it is held.

    Raises DeviceBusy if another holder has the lock, and DeviceError.
    """
    token = PurePosixPath(device.lease_folder).name
    word, value = _ask(device, "take", token)
    if word == "busy" and _is_over(value):  # nobody must wait for the end of this lease
        word, value = _ask(device, "take", token, dead=value)
    if word == "busy":
        raise DeviceBusy(value)
    if word != "held":
        raise DeviceError(
            f"{device.name}: its lock {value} belongs to another user of the device, who does not use it now: remove "
            "this folder there, or let all processes use the device as the same user"
        )
    device.transport.fence = Fence(holder=f"{value}/holder", token=token)
    _held.add(token)
    ended = threading.Event()
    renewals = threading.Thread(target=_renew, args=(device, token, ended), daemon=True, name=f"lock of {device.name}")
    renewals.start()
    try:
        yield
    finally:
        ended.set()
        renewals.join()
        _held.discard(token)
        device.transport.fence = None
        with suppress(DeviceError):  # the lease ends by itself
            _ask(device, "release", token)


def _is_over(holder: str) -> bool:
    """Return whether the holder of a lock is dead, or is this process, which could not release the lock."""
    owner, mine = owner_of(holder), owner_of(temporary_name())
    return owner_is_dead(holder) or (owner == mine and holder not in _held)


def holder_of(device: Device) -> str | None:
    """Return the name of the holder of a device's lock, or None. Raises DeviceError."""
    word, holder = _ask(device, "show")
    if word != "busy" or owner_is_dead(holder):
        return None
    owner = owner_of(holder)
    return holder if owner is None else f"{owner.host}-{owner.pid}"


def _renew(device: Device, token: str, ended: threading.Event) -> None:
    """Renew the lock until the lease has ended, or until the lock is lost, which the next command says."""
    while not ended.wait(LEASE_S / RENEWALS):
        try:
            if _ask(device, "renew", token)[0] != "held":
                return
        except DeviceError as error:
            _LOG.info("the lock of %s was not renewed: %s", device.name, error)


def _ask(device: Device, verb: str, token: str = "", *, dead: str = "") -> tuple[str, str]:
    """Ask the device's lock; return the first word of the answer, and the rest. Raises DeviceError."""
    is_local = device.config.transport is TransportKind.local
    place = device.config.lock_folder or (device.work_folder if is_local else "")
    arguments = [verb, place, token, str(LEASE_S), dead, device.work_folder]
    request = RunRequest(["sh", "-c", _SCRIPT, "sh", *arguments], deadline_s=_DEADLINE_S, is_fenced=False)
    result = require_success(device.transport.run(request), f"{device.name}: cannot use the lock of the device")
    printed = result.stdout.decode(errors="replace")
    if (answer := _ANSWER.fullmatch(printed)) is None:
        raise DeviceError(f"{device.name}: its lock answers {printed[:_LONGEST_NAME]!r}")
    about_folder, folder, about_holder, holder = answer.groups()
    return (about_folder, folder) if about_folder else (about_holder, holder[:_LONGEST_NAME])
