"""deploy: Bundle + device -> Deployment. Only what the device does not have travels."""

from __future__ import annotations

import uuid

from tasks.devices.farm import Device
from tasks.errors import DeviceError
from tasks.records import Blob, Bundle, Deployment
from tasks.stage import stage
from tasks.storage.store import Store


def deploy(bundle: Bundle, *, device: Device, store: Store) -> Deployment:
    """Push missing blobs to `<work folder>/blobs/<sha256>`, each checked on the device. Raises DeviceError."""
    folder = f"{device.work_folder}/blobs"
    _must(device, ["mkdir", "-p", folder])
    present = set(_must(device, ["ls", "-1", folder]).decode().split())
    missing = [blob for blob in bundle.blobs if blob.sha256 not in present]
    if missing:
        # Nothing bears its digest as a name among the blobs until the device itself has confirmed the content.
        arrivals = f"{device.work_folder}/arriving-{uuid.uuid4().hex}"
        for blob in missing:
            device.transport.push(store.path(blob), f"{arrivals}/{blob.sha256}")
        names = [f"{arrivals}/{blob.sha256}" for blob in missing]
        _confirm(device, _must(device, ["sha256sum", *names]).decode(), missing)
        _must(device, ["mv", *names, folder])
        _must(device, ["rmdir", arrivals])
    return Deployment(
        device=device.name,
        work_folder=device.work_folder,
        bundle=bundle,
        bytes_sent=sum(blob.size for blob in missing),
        blobs_sent=len(missing),
    )


def _confirm(device: Device, said: str, blobs: list[Blob]) -> None:
    found = [line.split(maxsplit=1)[0] for line in said.splitlines()]
    if found != [blob.sha256 for blob in blobs]:
        raise DeviceError(f"{device.name}: a file arrived damaged; what was sent was not put to use")


def _must(device: Device, argv: list[str]) -> bytes:
    result = device.run(argv)
    if result.exit_code != 0:
        raise DeviceError(f"{device.name}: {argv[0]} failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


deploy_task = stage(deploy, version=1, cached=False)
