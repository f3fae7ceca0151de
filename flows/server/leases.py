"""A device is one holder's at a time, in every process and worker of one Prefect API: by Prefect's own limits.

A holder renews its lease; when it dies, the lease ends by itself. Prefect's temporary servers, one a process, share
their database and, as `flows.server.settings` settles it, the folder of their leases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from httpx import HTTPStatusError, codes
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

# prefect.concurrency.sync does not export what it raises.
from prefect.concurrency._asyncio import ConcurrencySlotAcquisitionError  # isort: skip

from tasks.devices.farm import DeviceBusy
from tasks.errors import EnvironmentUnusable

LEASE_S = 90.0
"""How long a device stays taken after its holder's death, at least. Renewed when three quarters of it have gone."""


def limit_of(device: str) -> str:
    """The name of the device's limit. Prefect allows no `/` or `%` in one."""
    return f"qnnsweep-device-{hashlib.sha256(device.encode(errors='surrogateescape')).hexdigest()[:24]}"


@contextmanager
def exclusive(device: str) -> Generator[None]:
    """Hold `device`. Raises DeviceBusy, and EnvironmentUnusable when Prefect fails."""
    limit = limit_of(device)
    with suppress(ObjectAlreadyExists), get_client(sync_client=True) as client:  # another process was faster
        client.upsert_global_concurrency_limit_by_name(limit, 1)
    held = concurrency(limit, max_retries=0, lease_duration=LEASE_S, strict=True, raise_on_lease_renewal_failure=False)
    with ExitStack() as stack:
        try:
            stack.enter_context(held)
        except ConcurrencySlotAcquisitionError as error:
            cause = error.__cause__
            if isinstance(cause, HTTPStatusError) and cause.response.status_code == codes.LOCKED:
                raise DeviceBusy(device) from None
            raise EnvironmentUnusable(f"Prefect gives no lease of a device: {error}") from error
        yield
