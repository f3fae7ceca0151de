"""Damage to a real capture, operator by operator: the comparison names the damaged one and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conf.schema import Request
from tasks.records import Capture, LoweredProgram

if TYPE_CHECKING:
    from flows.resources import Resources

import injection  # isort: skip

pytestmark = pytest.mark.toolchain


def test_whatever_is_done_to_an_operator_it_is_the_one_that_is_named(
    request_8a8w: Request, resources: Resources, lowered: LoweredProgram, capture: Capture
) -> None:
    work = (lowered, capture, request_8a8w.tolerance.operators, 30, resources.store)
    found = resources.workers.call("compare", injection.inject, *work).value
    assert {each.kind for each in found} >= {"scaled", "channels_swapped", "clamped"}
    assert len({each.operator for each in found}) >= 5
    assert [each for each in found if not each.visible or each.blamed] == []
    limit = request_8a8w.tolerance.operators["8a8w"].snr_db
    assert limit is not None
    plain = [each for each in found if each.snr_db is not None and each.snr_db < limit]
    assert {each.verdict for each in plain} == {"introduced"}
