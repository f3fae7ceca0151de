"""deploy: Bundle + device -> Deployment. Only what the device does not have travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.devices.device import BLOBS, Device, batches
from tasks.devices.disk_space import make_room
from tasks.devices.native_runner import RUNNER
from tasks.devices.runner_cli import native_folder
from tasks.devices.triage import of_channel
from tasks.errors import DeviceError
from tasks.records import Blob, Bundle, Deployment
from tasks.stage import stage
from tasks.storage.store import Store


def deploy(bundle: Bundle, *, device: Device, store: Store) -> Deployment:
    """Push to `<work folder>/blobs/<sha256>` what the device itself does not find whole there. Raises DeviceError."""
    folder = f"{device.work_folder}/{BLOBS}"
    _must(device, ["mkdir", "-p", "--", folder])
    carried = {name: store.put_file(path) for name, path in device.native.items()}
    wanted = tuple(dict.fromkeys([*bundle.blobs, *carried.values()]))
    whole = _whole(device, folder, wanted)
    for names in batches([blob.sha256 for blob in whole]):
        _must(device, ["touch", "-c", *names], folder=folder)  # it was of use today
    missing = [blob for blob in wanted if blob not in whole]
    if missing:
        _send(missing, device, store, keep=[blob.sha256 for blob in wanted])
    if carried:
        _lay_out(carried, device)
    return Deployment(
        device=device.name,
        work_folder=device.work_folder,
        bundle=bundle,
        bytes_sent=sum(blob.size for blob in missing),
        blobs_sent=len(missing),
    )


def _send(missing: Sequence[Blob], device: Device, store: Store, *, keep: Sequence[str]) -> None:
    """In one transfer to a folder of this lease. None gets its digest as a name before the device has confirmed it."""
    make_room(device, keep, sum(blob.size for blob in missing))
    arrivals = f"{device.lease_folder}/arriving"
    with store.scratch("arriving") as folder:
        for blob in missing:
            (folder / blob.sha256).hardlink_to(store.path(blob))
        device.transport.push(folder, arrivals)
    damaged = set(missing) - _whole(device, arrivals, missing)
    if damaged:
        raise DeviceError(f"{device.name}: {len(damaged)} of {len(missing)} files arrived damaged; none was put to use")
    for names in batches([blob.sha256 for blob in missing]):
        _must(device, ["mv", "-f", *(f"{arrivals}/{name}" for name in names), f"{device.work_folder}/{BLOBS}"])
    _must(device, ["rmdir", "--", arrivals])


def _whole(device: Device, folder: str, blobs: Sequence[Blob]) -> set[Blob]:
    """Those of `blobs` that lie in `folder` on the device with the content that their names promise."""
    right: set[str] = set()
    for names in batches([blob.sha256 for blob in blobs]):
        # Its exit code says no more than that some are not there.
        said = device.run(["sha256sum", *names], folder=folder).stdout.decode(errors="replace")
        right |= {line.split()[0] for line in said.splitlines() if len(set(line.split())) == 1}
    return {blob for blob in blobs if blob.sha256 in right}


def _lay_out(carried: Mapping[str, Blob], device: Device) -> None:
    """The native runner and its libraries under their own names: links, so that all cells of the device share them."""
    folder = f"{device.work_folder}/{native_folder(carried)}"
    _must(device, ["mkdir", "-p", "--", folder])
    for name, blob in carried.items():
        _must(device, ["ln", "-sf", f"../../{BLOBS}/{blob.sha256}", f"{folder}/{name}"])
    _must(device, ["chmod", "755", f"{folder}/{RUNNER}"])


def _must(device: Device, argv: list[str], *, folder: str | None = None) -> None:
    result = device.run(argv, folder=folder)
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip()
        raise DeviceError(f"{device.name}: {argv[0]} failed: {why}", problem=of_channel(why))


deploy_task = stage(deploy, version=1, cached=False)
