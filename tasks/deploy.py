"""deploy: Bundle + device -> Deployment. Only what the device does not have travels."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.devices.farm import Device
from tasks.errors import DeviceError
from tasks.records import Blob, Bundle, Deployment
from tasks.stage import stage
from tasks.storage.store import Store


def deploy(bundle: Bundle, *, device: Device, store: Store) -> Deployment:
    """Push to `<work folder>/blobs/<sha256>` what the device itself does not find whole there. Raises DeviceError."""
    folder = f"{device.work_folder}/blobs"
    _must(device, ["mkdir", "-p", folder])
    whole = _whole(device, folder, bundle.blobs)
    missing = [blob for blob in bundle.blobs if blob not in whole]
    if missing:
        # Nothing bears its digest as a name among the blobs until the device has confirmed the content.
        arrivals = f"{device.lease_folder}/arriving"
        for blob in missing:
            device.transport.push(store.path(blob), f"{arrivals}/{blob.sha256}")
        damaged = set(missing) - _whole(device, arrivals, missing)
        if damaged:
            raise DeviceError(
                f"{device.name}: {len(damaged)} of {len(missing)} files arrived damaged; none was put to use"
            )
        _must(device, ["mv", "-f", *(f"{arrivals}/{blob.sha256}" for blob in missing), folder])
    return Deployment(
        device=device.name,
        work_folder=device.work_folder,
        bundle=bundle,
        bytes_sent=sum(blob.size for blob in missing),
        blobs_sent=len(missing),
    )


def _whole(device: Device, folder: str, blobs: Sequence[Blob]) -> set[Blob]:
    """Those of `blobs` that lie in `folder` on the device with the content that their names promise."""
    # Its exit code says no more than that some are not there.
    said = device.run(["sha256sum", *(blob.sha256 for blob in blobs)], folder=folder).stdout.decode()
    right = {line.split()[0] for line in said.splitlines() if len(set(line.split())) == 1}
    return {blob for blob in blobs if blob.sha256 in right}


def _must(device: Device, argv: list[str]) -> bytes:
    result = device.run(argv)
    if result.exit_code != 0:
        raise DeviceError(f"{device.name}: {argv[0]} failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


deploy_task = stage(deploy, version=1, cached=False)
