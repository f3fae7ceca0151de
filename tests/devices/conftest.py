"""Every way to a device, for the contract that all must keep. A new one is one more entry in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.devices.local import LocalTransport
from tasks.devices.transport import Transport


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """A device as a test sees it: a way to it, and its work folder, seen from both sides."""

    transport: Transport
    folder: str
    """As the device names it."""
    here: Path
    """The same folder as this machine names it: the devices of tests are on this machine."""


def local(folder: Path) -> Reached:
    return Reached(transport=LocalTransport(), folder=str(folder), here=folder)


TRANSPORTS: dict[str, Callable[[Path], Reached]] = {"local": local}


@pytest.fixture(params=TRANSPORTS)
def reached(request: pytest.FixtureRequest, tmp_path: Path) -> Reached:
    folder = tmp_path / "on the device"
    folder.mkdir()
    return TRANSPORTS[request.param](folder)
