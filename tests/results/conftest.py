"""The requests that the tests of results share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.conf.tolerances import ToleranceConfig


@pytest.fixture(scope="package")
def planned() -> Request:
    return load(["tolerance=none"]).cells[0].request


@pytest.fixture(scope="module")
def request_8a8w() -> Request:
    request = load(["scheme=8a8w"]).cells[0].request
    floors = ToleranceConfig(name="floors", final_snr_db={"8a8w": 20.0, "fp16": 50.0}, top1_agreement={"8a8w": 0.75})
    return replace(request, tolerance=floors)
