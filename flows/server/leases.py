"""Leases of devices: one holder at a time, among all processes and workers that use one Prefect API.

They are Prefect's global concurrency limits. A holder renews its lease; when it dies, the lease expires. Prefect's
temporary servers, one per process, share their database and, because of `flows.server.settings`, the folder of the
leases.
"""

import hashlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from httpx import HTTPStatusError, codes
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

# prefect.concurrency.sync does not export the exception that it raises.
from prefect.concurrency._asyncio import ConcurrencySlotAcquisitionError  # isort: skip

from tasks.devices.farm import DeviceBusy
from tasks.errors import EnvironmentUnusable

LEASE_S = 90.0
"""The duration of a lease, after which the device of a dead holder is free. Renewed after three quarters of it."""


def limit_of(device: str) -> str:
    """Return the name of the device's concurrency limit, in which Prefect allows no `/` and no `%`."""
    return f"qnnsweep-device-{hashlib.sha256(device.encode(errors='surrogateescape')).hexdigest()[:24]}"


@contextmanager
def exclusive(device: str) -> Generator[None]:
    """Hold the lease of `device`. Raises DeviceBusy, and EnvironmentUnusable if Prefect fails."""
    limit = limit_of(device)
    with suppress(ObjectAlreadyExists), get_client(sync_client=True) as client:  # created by another process
        client.upsert_global_concurrency_limit_by_name(limit, 1)
    held = concurrency(limit, max_retries=0, lease_duration=LEASE_S, strict=True, raise_on_lease_renewal_failure=False)
    with ExitStack() as stack:
        try:
            stack.enter_context(held)
        except ConcurrencySlotAcquisitionError as error:
            cause = error.__cause__
            if isinstance(cause, HTTPStatusError) and cause.response.status_code == codes.LOCKED:
                raise DeviceBusy(device) from None
            raise EnvironmentUnusable(f"Prefect could not lease a device: {error}") from error
        yield
