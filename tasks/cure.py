"""The stage cure: LoweredProgram + Comparison + scheme -> Cures, the changes of the scheme that were tried."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from qnnsweep.conf.impossible import excluded_scheme
from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import ChangeConfig, Precision, SchemeConfig
from qnnsweep.tasks.errors import RequestError, ToolchainError
from qnnsweep.tasks.records import Allocation, Comparison, Cures, LoweredProgram, Trial, WeightChoices
from qnnsweep.tasks.repair.allocation import choices_of, most_bits_of, most_weight_bits
from qnnsweep.tasks.repair.candidates import Candidate, candidates
from qnnsweep.tasks.repair.cures import OF_USE_DB, Promise
from qnnsweep.tasks.repair.prediction import statistic_of
from qnnsweep.tasks.stage import stage
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool
from qnnsweep.tasks.toolchain.workers.supervisor import CallResult, most_further_s

_COMPILED_FROM_DB = 0.5
"""The gain of the number of the target, at the rung `designed`, from which the changed operators are compiled."""


def cure(
    lowered: LoweredProgram,
    comparison: Comparison,
    scheme: SchemeConfig,
    kind: str,
    soc: SocConfig | None,
    count: int,
    target: TargetConfig,
    measured: Sequence[ChangeConfig] = (),
    *,
    store: Store,
    workers: WorkerPool,
) -> Cures:
    """Try changes of the scheme on all samples of the cell, without a device, until one helps.

    `count`: how many changes are tried at most; if none of them is certain to remove an error of the device, the first
    one that is comes last. `target`: its limits of the size count, and the number that a change must raise. `measured`:
    changes that are not tried, nor the like of those that failed. A float scheme has no changes, and a model with
    several methods or with states has some only in a repair: its trials are long. A change that the quantizer, the host
    or the compiler refuses is a trial with the reason, and so is one that takes too long.
    """
    if not count or (_is_long(lowered) and target == TargetConfig()):
        return Cures(trials=())
    silent = workers.reporting(lambda: None)  # the first call reports the start
    subject = lowered.model.name, lowered.scheme, lowered.backend, *filter(None, [lowered.soc])
    driven = lowered.model.driven
    plan, statistic = None if driven is None else driven.plan, statistic_of(target)
    allocations: list[Allocation] = []
    trials: dict[tuple[object, ...], Trial] = {}
    calls = iter([workers])

    def call(function: Callable[..., Any], *given: Any, most_cpu_s: float = math.inf) -> CallResult[Any]:
        return next(calls, silent).call("cure", function, *given, subject=subject, most_cpu_s=most_cpu_s)

    def trial_of(candidate: Candidate, changed: SchemeConfig, least_db: float) -> Trial:
        given = lowered.methods, plan, scheme, changed, kind, soc, statistic, least_db, store
        limit = most_further_s(lowered.seconds)
        return _trial(candidate, partial(call, entrypoints.try_scheme, *given, most_cpu_s=limit))

    def offered() -> list[Candidate]:
        return [
            candidate
            for candidate in candidates(comparison, lowered, scheme, target, allocations, measured)
            if excluded_scheme(kind, soc, candidate.scheme) is None and candidate.key not in trials
        ]

    before: tuple[float, ...] = ()
    if plan is not None and (first := offered()[:1]):
        unchanged = trial_of(first[0], scheme, -math.inf)
        if unchanged.refused is not None:  # no change can be judged
            return Cures(trials=(unchanged,))
        before = unchanged.noise
    promise = Promise(comparison, lowered, before, statistic)
    least_db = statistic([*promise.design.values()]) + _COMPILED_FROM_DB

    def helps(candidate: Candidate) -> bool:
        """Try a candidate, and return whether no other one need be tried."""
        # Of a change for an error of the device that is not known, the host can show only that it compiles.
        is_unknown = candidate.cause == "device" and not candidate.is_known
        limit = -math.inf if candidate.is_needed or is_unknown else least_db
        trial = trials[candidate.key] = trial_of(candidate, candidate.scheme, limit)
        promised = promise.of(candidate, trial)
        return promised is not None and (promised.predicted_db >= OF_USE_DB or candidate.is_needed)

    def other_bits_help() -> bool:
        """Try the best bits of the weights, and return whether no other change need be tried."""
        (method,) = lowered.methods  # only such a model can have a target of the size
        searched: list[Sequence[WeightChoices]] = []
        for change, weights in choices_of(method, scheme):
            if weights in searched:
                continue
            searched.append(weights)
            given = method, weights, most_bits_of(target, lowered, weights), store
            bits = tuple(call(entrypoints.best_bits, *given).value)
            if any(bits == other.bits for other in allocations):
                continue
            allocations.append(Allocation(change=change, bits=bits))
            candidate = next((candidate for candidate in offered() if candidate.change == change), None)
            if candidate is not None:
                is_enough = helps(candidate)
                if trials[candidate.key].refused is None:
                    return is_enough
        return False

    if most_weight_bits(target, lowered) is None or not other_bits_help():
        found = offered()
        # Without a measurement, no other change for the device's own error can promise a gain.
        certain = [each for each in found if each.replaces_kernel and each.estimated_db >= OF_USE_DB]
        last = [] if any(each in certain for each in found[:count]) else certain[:1]
        any(helps(candidate) for candidate in (*found[:count], *last))
    return Cures(trials=tuple(trials.values()), allocations=tuple(allocations), before=before)


def _is_long(lowered: LoweredProgram) -> bool:
    """Return whether the trials of a program are long: it has several methods, or states."""
    return lowered.model.driven is not None or len(lowered.methods) > 1


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
    measured: Sequence[ChangeConfig] = (),
) -> object:
    """Return what the result depends on. The name of the scheme has no effect, and a float scheme has no changes."""
    if scheme.precision is not Precision.quantized:
        return lowered, comparison, ()
    is_asked = _is_long(lowered) and target != TargetConfig()
    limits = target.size_kib, target.effective_bits, statistic_of(target).quantile, is_asked
    known = [replace(change, scheme=replace(change.scheme, name="")) for change in measured]
    return lowered, comparison, (replace(scheme, name=""), kind, soc, count, limits, known)


cure_task = stage(cure, version=20, key_inputs=_key_inputs)
