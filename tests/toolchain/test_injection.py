"""Damage to a real capture, operator by operator: the comparison names the damaged operator and no other."""

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
    damages = resources.workers.call("compare", injection.inject, *work).value
    assert {damage.kind for damage in damages} >= {"scaled", "channels_swapped", "clamped"}
    assert len({damage.operator for damage in damages}) >= 5
    assert [damage for damage in damages if not damage.visible or damage.blamed] == []
    limit = request_8a8w.tolerance.operators["8a8w"].snr_db
    assert limit is not None
    plain = [damage for damage in damages if damage.snr_db is not None and damage.snr_db < limit]
    assert {damage.verdict for damage in plain} == {"introduced"}
