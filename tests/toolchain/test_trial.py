"""The trial of a changed scheme on the host, with the real quantizer and compiler."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from safetensors.numpy import load

from qnnsweep.conf.load import load as load_plan
from qnnsweep.conf.schema import Request, SocConfig
from qnnsweep.conf.schemes import SchemeOverride
from qnnsweep.tasks.numerics.samples import sample_noise
from qnnsweep.tasks.records import LoweredProgram
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.repair.prediction import LOWEST, Statistic
from qnnsweep.tasks.toolchain import entrypoints

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain


def tried(
    resources: Resources,
    lowered: LoweredProgram,
    request: Request,
    soc: SocConfig,
    *overrides: SchemeOverride,
    statistic: Statistic = LOWEST,
    least_db: float = -math.inf,
) -> tuple[list[float], str | None]:
    """Try overrides of the scheme. By default, everything is compiled, whatever the noise is."""
    changed = replace(request.scheme, overrides=[*overrides])
    given = lowered.methods, None, request.scheme, changed, "qnn", soc, statistic, least_db, resources.store
    return resources.workers.call("cure", entrypoints.try_scheme, *given).value


def test_without_a_change_the_trial_has_the_noise_of_the_rung_designed(
    resources: Resources, lowered: LoweredProgram, request_8a8w: Request
) -> None:
    (method,) = lowered.methods
    assert method.outputs_designed is not None
    designed, eager = (
        load(resources.store.read(blob)) for blob in (method.outputs_designed, method.exported.outputs_eager)
    )
    keys = [tensor_key(sample, 0) for sample in range(method.choosable)]
    noise, refused = tried(resources, lowered, request_8a8w, request_8a8w.soc)
    assert noise == [sample_noise([(designed[key], eager[key])]) for key in keys]
    assert refused is None


def test_a_change_that_the_compiler_of_an_soc_refuses_is_refused_for_this_soc_alone(
    resources: Resources, lowered: LoweredProgram, request_8a8w: Request
) -> None:
    wide = SchemeOverride(node="linear", quant_dtype="16a16w")
    old = load_plan(["model=digits_cnn", "scheme=8a8w", "soc=SM8450"]).cells[0].request.soc
    noise, refused = tried(resources, lowered, request_8a8w, request_8a8w.soc, wide)
    assert (len(noise), refused) == (lowered.methods[0].choosable, None)
    again, refused = tried(resources, lowered, request_8a8w, old, wide)
    assert again == noise, "the noise of the design does not depend on the SoC"
    assert refused is not None
    assert "73" in refused, refused
    mean = Statistic(None)
    for margin_db, is_compiled in ((-0.1, True), (0.1, False)):
        least_db = mean(noise) + margin_db
        _, refused = tried(resources, lowered, request_8a8w, old, wide, statistic=mean, least_db=least_db)
        assert (refused is not None) == is_compiled
