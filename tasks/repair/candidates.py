"""The changes of a scheme that may make a cell more accurate, in the order in which they are worth a trial.

The operators that a family can change are ranked by the error that the change should remove. A candidate changes the
first operators of this ranking: as many as give most gain per cost, if the change removed the whole error. A trial
(`qnnsweep.tasks.cure`) shows how much it removes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from qnnsweep.conf.repair import TargetConfig
from qnnsweep.conf.schemes import ChangeConfig, Precision, SchemeConfig
from qnnsweep.tasks.numerics.reported import reported_budget, reported_worst_operator
from qnnsweep.tasks.records import Allocation, Comparison, ErrorShare, LoweredProgram
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.allocation import most_weight_bits, settings_of_bits
from qnnsweep.tasks.repair.facts import OperatorFacts, operator_facts
from qnnsweep.tasks.repair.families import FAMILIES, WIDER, Family, merged_settings
from qnnsweep.tasks.repair.schemes import Conflict, Selector, Settings, setting, with_settings
from qnnsweep.tasks.repair.wording import named_targets, operators_phrase

_LEAST_GAIN_DB = 0.1
_MOST_OPERATORS = 64
_LEAST_ENERGY = 1e-4  # the part of the error below which an operator is left out
_LEAST_LEFT = 0.01  # of the error's energy: an estimate of more than 20 dB says no more than one of 20 dB
_COST_OF_SIZE = 20.0  # of a program that is twice as large
_COST_OF_ACTIVATIONS = 5.0  # of activations that are twice as large, which the cycles follow
_COST_OF_SAMPLES = 0.5  # less than that of an override: the scheme does not grow
_COST_OF_SCHEME = 6.0  # of twice as large activations in the whole scheme
_BITS_PER_BYTE = 8
_Part = tuple[Cause, str]
_STEPS: tuple[Cause, ...] = ("resolution", "device")
_OF_ALLOCATION_DB = 20.0  # the most that an estimate says: the change was found with the model of the arithmetic


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A change of a scheme at some operators."""

    cause: Cause
    change: str
    """What the change does, such as `16-bit activations`."""
    operators: tuple[str, ...]
    """The names of the operators whose error the change removes, the largest error first."""
    where: str
    """The operators in words, such as `6 additions (layers.0 and 5 more)`."""
    scheme: SchemeConfig
    """The whole scheme with the change."""
    estimated_db: float
    """The gain if the change removed the whole error that it is for. Only a trial predicts a gain."""
    cost: float
    device_share: float = 0.0
    """The part of the error that is the device's own at these operators, if the change is for this error."""
    is_known: bool = False
    """Whether the model of the arithmetic has the error that the change removes; see `Family`."""
    replaces_kernel: bool = False
    """Whether the change certainly removes `device_share`; see `Family`."""
    is_first: bool = False
    """Whether the change is tried before all others that are not needed."""
    is_needed: bool = False
    """Whether the program is larger than its target without the change, so that a loss is no reason against it."""

    @property
    def description(self) -> str:
        return f"{self.change} for {self.where}" if self.where else self.change

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """What distinguishes the candidate from others. It does not depend on the changes before it."""
        return self.cause, self.change, tuple(sorted(self.operators))

    def is_ruled_out_by(self, other: ChangeConfig) -> bool:
        """Return whether another change has the same scheme, or failed with the same at one of the operators.

        A change of the whole model has no operators.
        """
        if self.scheme == other.scheme:
            return True
        if not other.has_failed or (self.cause, self.change) != (other.cause, other.change):
            return False
        return sorted(self.operators) == sorted(other.operators) or not set(self.operators).isdisjoint(other.operators)


def candidates(
    comparison: Comparison,
    lowered: LoweredProgram,
    scheme: SchemeConfig,
    target: TargetConfig | None = None,
    allocations: Sequence[Allocation] = (),
    measured: Sequence[ChangeConfig] = (),
    *,
    most_bytes: float = math.inf,
) -> list[Candidate]:
    """Return the candidates for a cell, the one with most estimated gain per cost first. Equal schemes are one.

    Those that are needed come before all others. `target`: its limits of the size count. `allocations`: the best
    bits of the weights within these limits. `most_bytes`: by how many bytes the program may grow.
    """
    # The samples of a certificate have no effect.
    choosable = {method.exported.method: method.choosable for method in lowered.methods}
    searched = tuple(row for row in comparison.outputs if row.sample < choosable.get(row.method, 0))
    parts = energies(reported_budget(replace(comparison, outputs=searched)))
    if scheme.precision is not Precision.quantized or not parts:
        return []
    worst = reported_worst_operator(comparison)
    named_first = None if worst is None else worst.row.operator.name
    facts = operator_facts(comparison, lowered)
    search = _Search(facts, parts, scheme, lowered.program.size, named_first, measured)
    most_bits = None if target is None else most_weight_bits(target, lowered)
    offered: list[Candidate] = []
    if most_bits is not None:
        weight_bits = sum(method.weight_bits for method in lowered.methods)
        most_bytes = min(most_bytes, (most_bits - weight_bits) / _BITS_PER_BYTE)
        is_needed = most_bits < weight_bits
        offered += [new for found in allocations for new in search.of_bits(found, is_needed=is_needed)]
    offered += [candidate for family in FAMILIES for candidate in search.candidates(family, most_bytes)]
    offered += search.of_scheme(max(method.exported.calibration_samples for method in lowered.methods))
    by_scheme: dict[str, Candidate] = {}
    for candidate in sorted(offered, key=_rank):
        if not any(map(candidate.is_ruled_out_by, measured)):
            by_scheme.setdefault(str(candidate.scheme), candidate)
    return list(by_scheme.values())


def _rank(candidate: Candidate) -> tuple[bool, bool, float]:
    # The candidates that are needed stay in their order.
    order = 0.0 if candidate.is_needed else -candidate.estimated_db / candidate.cost
    return not candidate.is_needed, not candidate.is_first, order


def energies(shares: Sequence[ErrorShare]) -> dict[tuple[Cause, str], float]:
    """Return the energies of the parts of an output's error, divided by their sum. `shares`: of one output."""
    known: dict[_Part, float] = {
        (share.cause, share.operator): share.share
        for share in shares
        if share.operator is not None and share.share is not None and share.share > 0
    }
    unexplained = sum(share.share or 0.0 for share in shares if share.cause == "unexplained" and share.operator is None)
    whole = sum(known.values()) + unexplained
    return {part: share / whole for part, share in known.items()}


class _Search:
    def __init__(
        self,
        facts: Mapping[str, OperatorFacts],
        parts: Mapping[_Part, float],
        scheme: SchemeConfig,
        size_bytes: int,
        named_first: str | None,
        measured: Sequence[ChangeConfig],
    ) -> None:
        self._facts = facts
        self._named_first = named_first
        self._by_index = {operator.operator.index: operator for operator in facts.values()}
        self._targets = named_targets(self._by_index[index].operator for index in sorted(self._by_index))
        self._parts = parts
        self._failed = [change for change in measured if change.has_failed]
        self._scheme = scheme
        self._size_bytes = max(size_bytes, 1)
        self._activations = max(sum(operator.elements for operator in facts.values()), 1)

    def candidates(self, family: Family, most_bytes: float) -> Iterator[Candidate]:
        """Yield the family's candidate with most gain per cost and, if it has several operators, the first alone.

        It has no operator at which the same failed.
        """
        failed = {
            name
            for change in self._failed
            if (change.cause, change.change) == (family.causes[0], family.change)
            for name in change.operators
        }
        offers = {
            operator.operator.name: offer
            for operator in self._facts.values()
            if operator.selector is not None
            and operator.operator.name not in failed
            and (family.for_all or self._parts.get((family.causes[0], operator.operator.name), 0.0) >= _LEAST_ENERGY)
            and (offer := self._offer(family, operator)) is not None
        }
        ranked = sorted(offers, key=lambda name: -self._removed(family, [name]))
        counts = range(1, min(len(ranked), _MOST_OPERATORS) + 1)
        if family.for_all:
            counts = [len(ranked)] if ranked else []
        drafts = [self._draft(family, ranked[:count], offers) for count in counts]
        useful = [draft for draft in drafts if draft.estimated_db >= _LEAST_GAIN_DB and draft.more_bytes <= most_bytes]
        if useful:
            # Of values that are clipped one behind the other, each alone has nearly the whole error.
            best = max(useful, key=lambda draft: (draft.estimated_db / draft.cost, len(draft.names)))
            for draft in (best, useful[0]) if useful[0] is not best else (best,):
                with suppress(Conflict):
                    yield self._candidate(family, draft)

    def of_scheme(self, samples: int) -> Iterator[Candidate]:
        """Yield the changes of the whole scheme: all calibration samples, and 16-bit activations.

        `samples`: the number of the model's calibration samples.
        """
        clipped = [
            name
            for name, operator in self._facts.items()
            if operator.selector is not None and setting(self._scheme, operator.selector, "range") is None
        ]
        if samples > self._scheme.calibration_samples:
            changed = replace(self._scheme, calibration_samples=samples)
            yield from self._whole(("clipping",), f"{samples} calibration samples", clipped, changed, _COST_OF_SAMPLES)
        wider = WIDER.get(self._scheme.quant_dtype or "")
        if wider is not None:
            changed = replace(self._scheme, quant_dtype=wider)
            yield from self._whole(_STEPS, "16-bit activations", list(self._facts), changed, _COST_OF_SCHEME)

    def of_bits(self, allocation: Allocation, *, is_needed: bool) -> Iterator[Candidate]:
        """Yield the change to other bits of the weights, if there is one. What it gains is known from its trial."""
        changed = settings_of_bits(self._facts, allocation.bits, self._scheme)
        with suppress(Conflict):
            if changed:
                yield Candidate(
                    cause="weights",
                    change=allocation.change,
                    operators=tuple(changed),
                    where=self._where(list(changed)),
                    scheme=with_settings(self._scheme, dict(changed.values())),
                    estimated_db=0.0 if is_needed else _OF_ALLOCATION_DB,
                    cost=1.0,
                    is_needed=is_needed,
                )

    def _whole(
        self, causes: tuple[Cause, ...], change: str, names: Sequence[str], scheme: SchemeConfig, cost: float
    ) -> Iterator[Candidate]:
        removed = sum(self._parts.get((cause, name), 0.0) for cause in causes for name in names)
        if (estimated := _gain_db(removed)) >= _LEAST_GAIN_DB:
            yield Candidate(
                cause=causes[0],
                change=change,
                operators=(),
                where="the whole model",
                scheme=scheme,
                estimated_db=estimated,
                cost=cost,
            )

    def _removed(self, family: Family, names: Sequence[str]) -> float:
        """Return the energy that a family should remove at some operators."""
        if family.is_known and names:
            return sum(energy for (cause, _), energy in self._parts.items() if cause in family.causes)
        return sum(self._parts.get((cause, name), 0.0) for cause in family.causes for name in names)

    def _of_device(self, names: Sequence[str]) -> float:
        return sum(self._parts.get(("device", name), 0.0) for name in names)

    def _draft(self, family: Family, names: Sequence[str], offers: Mapping[str, Settings]) -> "_Draft":
        settings = self._settings(family, names, offers)
        changed = [operator for operator in self._facts.values() if operator.selector in settings]
        more_bytes = sum(self._facts[name].weights for name in names) * family.weight_bits / _BITS_PER_BYTE
        activations = sum(operator.elements for operator in changed) * family.activation_bits / _BITS_PER_BYTE
        costs = (
            family.cost,
            family.operator_cost * len(changed),
            _COST_OF_SIZE * more_bytes / self._size_bytes,
            _COST_OF_ACTIVATIONS * activations / self._activations,
        )
        return _Draft(
            names=tuple(names),
            settings=settings,
            estimated_db=_gain_db(self._removed(family, names)),
            cost=math.fsum(costs),
            more_bytes=more_bytes,
        )

    def _settings(
        self, family: Family, names: Sequence[str], offers: Mapping[str, Settings]
    ) -> dict[Selector, Settings]:
        """Return the new settings by selector: of the operators, of their readers, and of what is merged with them."""
        names = [twin for name in names for twin in self._facts[name].twins or [name]]
        changed = {name: self._facts[name] for name in names}
        for name in names if family.with_readers else ():
            readers = (self._by_index.get(index) for index in self._facts[name].readers)
            changed |= {reader.operator.name: reader for reader in readers if reader is not None}
        if family.with_later:  # behind a clipped value, an operator may clip nothing yet
            changed |= {name: later for name, later in self._facts.items() if self._is_later(later, names)}
        for name in names if family.with_group else ():
            changed |= {member.operator.name: member for member in self._group(self._facts[name])}
        settings: dict[Selector, Settings] = {}
        merged: dict[Selector, Settings] = {}
        for name, operator in changed.items():
            offer = offers.get(name) or self._offer(family, operator)
            if offer is None or operator.selector is None:
                continue
            settings[operator.selector] = _joined(settings.get(operator.selector, {}), offer)
            for index in operator.merged_with:
                other = self._by_index.get(index)
                needed = merged_settings(other, offer, self._scheme) if other is not None else None
                if other is not None and other.selector is not None and needed is not None:
                    merged[other.selector] = needed
        return merged | settings

    def _is_later(self, operator: OperatorFacts, names: Sequence[str]) -> bool:
        """Return whether an operator comes after one of those with these names, in its method."""
        before = (self._facts[name].operator for name in names)
        return any(
            other.method == operator.operator.method and other.index < operator.operator.index for other in before
        )

    def _offer(self, family: Family, operator: OperatorFacts) -> Settings | None:
        """Return the offer of a family. An input of the model gets only offers of a range."""
        offer = family.offer(operator, self._scheme)
        if offer is None or operator.selector is None or operator.selector.kind == "node":
            return offer
        return offer if {name for name, value in offer.items() if value is not None} <= {"range"} else None

    def _group(self, operator: OperatorFacts) -> Iterator[OperatorFacts]:
        """Yield the operators that have the operator's grid, directly before and behind it: of a pool or a view."""
        near = (*operator.readers, *operator.operator.sources)
        for other in filter(None, map(self._by_index.get, near)):
            if other.operator.quantization == operator.operator.quantization is not None:
                yield other

    def _candidate(self, family: Family, draft: "_Draft") -> Candidate:
        """Return the candidate of a draft. Raises Conflict."""
        return Candidate(
            cause=family.causes[0],
            change=family.change,
            operators=draft.names,
            where=self._where(draft.names),
            scheme=with_settings(self._scheme, draft.settings),
            estimated_db=draft.estimated_db,
            cost=draft.cost,
            device_share=0.0 if family.is_known or family.causes[0] != "device" else self._of_device(draft.names),
            is_known=family.is_known,
            replaces_kernel=family.replaces_kernel,
            is_first=family.for_all,
        )

    def _where(self, names: Sequence[str]) -> str:
        """Return the operators in words. The first of the cell's sentence comes first, if it is among them."""
        names = sorted(names, key=lambda name: name != self._named_first)
        inputs = [name for name in names if self._targets[name] == "input"]
        operators = [name for name in names if name not in inputs]
        targets = {self._targets[name] for name in operators}
        modules = [self._facts[name].operator.module_path or name for name in operators]
        phrases = [operators_phrase(targets.pop() if len(targets) == 1 else None, modules)] if operators else []
        return " and ".join([*phrases, *([operators_phrase("input", inputs)] if inputs else [])])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Draft:
    """A change of the first operators of a family's ranking."""

    names: tuple[str, ...]
    settings: Mapping[Selector, Settings]
    """The new settings by selector, of the operators of `names` and of others that must change too."""
    estimated_db: float
    cost: float
    more_bytes: float
    """By how many bytes the weights grow."""


def _joined(settings: Settings, others: Settings) -> Settings:
    """Return the settings of operators that cannot be told apart: the range of all."""
    ranges = [limits for limits in (settings.get("range"), others.get("range")) if limits is not None]
    if len(ranges) < 2:
        return {**settings, **others}
    return {**settings, **others, "range": [min(low for low, _ in ranges), max(high for _, high in ranges)]}


def _gain_db(removed: float) -> float:
    """Return the gain if this part of the error's energy is removed."""
    return -10 * math.log10(max(1 - removed, _LEAST_LEFT))
