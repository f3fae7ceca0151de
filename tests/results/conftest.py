"""The request that the tests of results share."""

from __future__ import annotations

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request


@pytest.fixture(scope="package")
def planned() -> Request:
    return load(["tolerance=none"]).cells[0].request
