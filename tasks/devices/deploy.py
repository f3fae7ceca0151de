"""The step deploy of a measurement: Bundle + device -> Deployment.

Only blobs that the device does not have are sent.
"""

from collections.abc import Mapping, Sequence

from qnnsweep.tasks.devices.device import BLOBS, Device
from qnnsweep.tasks.devices.disk_space import make_room
from qnnsweep.tasks.devices.native_runner import RUNNER
from qnnsweep.tasks.devices.runner_cli import native_folder
from qnnsweep.tasks.devices.transport import batches, require_success
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.records import Blob, Bundle, Deployment
from qnnsweep.tasks.storage.store import Store


def deploy(bundle: Bundle, *, device: Device, store: Store) -> Deployment:
    """Push each blob to `<work folder>/blobs/<sha256>` unless the device has an intact copy.

    Raises DeviceError, and EvidenceError for a blob that is damaged in the store.
    """
    folder = f"{device.work_folder}/{BLOBS}"
    _run(device, ["mkdir", "-p", "--", folder])
    native = {name: store.put_file(path) for name, path in device.native.items()}
    needed = tuple(dict.fromkeys([*bundle.blobs, *native.values()]))
    present = _intact(device, folder, needed)
    for names in batches([blob.sha256 for blob in present]):
        _run(device, ["touch", "-c", *names], folder=folder)  # a blob's time is the time of its last use
    missing = [blob for blob in needed if blob not in present]
    if missing:
        _send(missing, device, store, keep=[blob.sha256 for blob in needed])
    if native:
        _link_native_runner(native, device)
    return Deployment(
        device=device.name,
        work_folder=device.work_folder,
        bundle=bundle,
        bytes_sent=sum(blob.size for blob in missing),
        blobs_sent=len(missing),
    )


def _send(missing: Sequence[Blob], device: Device, store: Store, *, keep: Sequence[str]) -> None:
    """Send the blobs in one transfer to a folder of the lease. If all of them are intact, move them to `blobs`."""
    make_room(device, keep, sum(blob.size for blob in missing))
    arrivals = f"{device.lease_folder}/arriving"
    with store.scratch("arriving") as folder:
        for blob in missing:
            store.verify(blob)  # damage in the store is no fault of the device
            (folder / blob.sha256).hardlink_to(store.path(blob))
        device.transport.push(folder, arrivals)
    damaged = set(missing) - _intact(device, arrivals, missing)
    if damaged:
        raise DeviceError(f"{device.name}: {len(damaged)} of {len(missing)} files arrived damaged; none was used")
    for names in batches([blob.sha256 for blob in missing]):
        _run(device, ["mv", "-f", *(f"{arrivals}/{name}" for name in names), f"{device.work_folder}/{BLOBS}"])
    _run(device, ["rmdir", "--", arrivals])


def _intact(device: Device, folder: str, blobs: Sequence[Blob]) -> set[Blob]:
    """Return the blobs with an intact copy in the device's `folder`. A copy is intact if its sha256 is its name."""
    intact: set[str] = set()
    for names in batches([blob.sha256 for blob in blobs]):
        # The exit code is ignored: it is not 0 when any of the files is missing.
        printed = device.run(["sha256sum", *names], folder=folder).stdout.decode(errors="replace")
        intact |= {line.split()[0] for line in printed.splitlines() if len(set(line.split())) == 1}
    return {blob for blob in blobs if blob.sha256 in intact}


def _link_native_runner(files: Mapping[str, Blob], device: Device) -> None:
    """Link the native runner and its libraries under their file names. All cells of the device share these links."""
    folder = f"{device.work_folder}/{native_folder(files)}"
    _run(device, ["mkdir", "-p", "--", folder])
    for name, blob in files.items():
        _run(device, ["ln", "-sf", f"../../{BLOBS}/{blob.sha256}", f"{folder}/{name}"])
    _run(device, ["chmod", "755", f"{folder}/{RUNNER}"])


def _run(device: Device, argv: list[str], *, folder: str | None = None) -> None:
    require_success(device.run(argv, folder=folder), f"{device.name}: {argv[0]} failed")
