"""Leases of devices. Among the processes that use the same Prefect API, at most one holds a device's lease.

A lease is a slot of one of Prefect's global concurrency limits. Its holder renews it; if the holder dies, the lease
expires. A process may have a temporary server of its own. All these servers share Prefect's database and, because of
`qnnsweep.flows.server.settings`, also the folder of the leases.
"""

import hashlib
import logging
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from httpx import HTTPStatusError, codes
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

# prefect.concurrency.sync does not export the exception that it raises.
from prefect.concurrency._asyncio import ConcurrencySlotAcquisitionError  # isort: skip

from qnnsweep.tasks.devices.farm import DeviceBusy
from qnnsweep.tasks.errors import EnvironmentUnusable


def _is_of_no_acquisition(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and record.args[:1] == ("ConcurrencySlotAcquisitionWithLeaseService",))


# Prefect logs an error whenever a slot is not free. Here, `exclusive` raises it, and the caller asks every second.
logging.getLogger("prefect._internal.concurrency").addFilter(_is_of_no_acquisition)

LEASE_S = 90.0
"""The duration of a lease. A holder renews its lease after 3/4 of this time. A dead holder's lease ends by itself."""


def limit_of(device: str) -> str:
    """Return the name of the device's concurrency limit. It is a hash, because Prefect allows no `/` and no `%`."""
    return f"qnnsweep-device-{hashlib.sha256(device.encode(errors='surrogateescape')).hexdigest()[:24]}"


@contextmanager
def exclusive(device: str) -> Generator[None]:
    """Hold the lease of `device`. Raises DeviceBusy if another process has the lease.

    Raises EnvironmentUnusable if Prefect fails.
    """
    limit = limit_of(device)
    with suppress(ObjectAlreadyExists), get_client(sync_client=True) as client:  # another process may have created it
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
