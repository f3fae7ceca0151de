"""The stage cure: LoweredProgram + Comparison + scheme -> Cures, the changes of the scheme that were tried."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from qnnsweep.conf.impossible import excluded_scheme
from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.errors import RequestError, ToolchainError
from qnnsweep.tasks.records import Comparison, Cures, LoweredProgram, Trial
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from qnnsweep.tasks.repair.cures import OF_USE_DB, Promise
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import CallResult

_COMPILED_FROM_DB = 0.5
"""The gain at the rung `designed` from which the changed operators are compiled."""


def cure(
    lowered: LoweredProgram,
    comparison: Comparison,
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    count: int,
    target: TargetConfig,
    *,
    store: Store,
    workers: WorkerPool,
) -> Cures:
    """Try changes of the scheme on all samples of the cell, without a device, until one helps.

    `count`: how many changes are tried at most. `target`: its limits of the size count. A model with several methods or
    with states, and a float scheme, have none. A change that the quantizer, the host or the compiler refuses is a trial
    with the reason.
    """
    if lowered.model.driven is not None or lowered.methods[0].exported.method is not None:
        return Cures(trials=())
    possible = [
        candidate
        for candidate in candidates(comparison, lowered, scheme, target)
        if excluded_scheme(kind, soc, candidate.scheme) is None
    ]
    promise = Promise(comparison, lowered)
    most_noise = max(promise.design, default=0.0) / 10 ** (_COMPILED_FROM_DB / 10)
    subject = lowered.model.name, lowered.scheme, lowered.backend, *filter(None, [lowered.soc])
    silent = workers.reporting(lambda: None)  # the first call reports the start
    trials: list[Trial] = []
    for candidate in possible[:count]:
        pool = silent if trials else workers
        limit = math.inf if candidate.is_needed else most_noise
        given = lowered.methods[0], scheme, candidate.scheme, kind, soc, limit, store
        trial = _trial(candidate, partial(pool.call, "cure", entrypoints.try_scheme, *given, subject=subject))
        trials.append(trial)
        promised = promise.of(candidate, trial)
        if promised is not None and (promised.predicted_db >= OF_USE_DB or candidate.is_needed):
            break
    return Cures(trials=tuple(trials))


def _trial(candidate: Candidate, call: Callable[[], CallResult[tuple[list[float], str | None]]]) -> Trial:
    noise, refused = list[float](), None
    for is_last in (False, True):
        try:
            noise, refused = call().value
        except RequestError as error:
            refused = str(error)
        except ToolchainError as error:
            refused = str(error)
            if error.signal is not None and not is_last:  # the machine can be at fault: the result would be cached
                continue
        break
    return Trial(
        cause=candidate.cause,
        change=candidate.change,
        operators=candidate.operators,
        noise=tuple(noise),
        refused=refused,
    )


def _key_inputs(
    lowered: LoweredProgram,
    comparison: Comparison,
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    count: int,
    target: TargetConfig,
) -> object:
    """Return what the result depends on. The name of the scheme has no effect, and a float scheme has no changes."""
    limits = target.size_kib, target.effective_bits
    changes = (replace(scheme, name=""), kind, soc, count, limits) if scheme.precision is Precision.quantized else ()
    return lowered, comparison, changes


cure_task = stage(cure, version=9, key_inputs=_key_inputs)
