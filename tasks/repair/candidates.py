"""The changes of a scheme that may make a cell more accurate, each with its predicted gain and its estimated cost.

The operators that a family can change are ranked by the error that the change removes. A candidate changes the first
operators of this ranking: as many as give most gain per cost.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.numerics.reported import reported_budget
from qnnsweep.tasks.records import Comparison, LoweredProgram
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.facts import OperatorFacts, operator_facts
from qnnsweep.tasks.repair.families import FAMILIES, Family, Offer, merged_settings
from qnnsweep.tasks.repair.prediction import ErrorPart, energies, gain_db
from qnnsweep.tasks.repair.schemes import Conflict, Settings, setting, with_settings
from qnnsweep.tasks.repair.wording import named_targets, operators_phrase

LEAST_GAIN_DB = 0.1
_MOST_OPERATORS = 64
_LEAST_ENERGY = 1e-4  # the part of the error below which an operator is left out
_COST_OF_SIZE = 20.0  # of a program that is twice as large
_COST_OF_ACTIVATIONS = 5.0  # of activations that are twice as large, which the cycles follow
_COST_OF_SAMPLES = 0.5  # less than that of an override: the scheme does not grow
_BITS_PER_BYTE = 8


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
    predicted_db: float
    cost: float

    @property
    def description(self) -> str:
        return f"{self.change} for {self.where}"

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """What distinguishes the candidate from others. It does not depend on the changes before it."""
        return self.cause, self.change, tuple(sorted(self.operators))


def candidates(
    comparison: Comparison, lowered: LoweredProgram, scheme: SchemeConfig, *, most_bytes: float = math.inf
) -> list[Candidate]:
    """Return the candidates for a cell, the one with most predicted gain per cost first.

    The gain is that of the reported output on its sample. `most_bytes`: by how many bytes the program may grow.
    """
    parts = energies(reported_budget(comparison))
    if scheme.precision is not Precision.quantized or not parts:
        return []
    (method,) = lowered.methods
    search = _Search(operator_facts(comparison, method), parts, scheme, lowered.program.size)
    offered = [candidate for family in FAMILIES for candidate in search.candidates(family, most_bytes)]
    offered += search.with_all_samples(method.exported.calibration_samples)
    return sorted(offered, key=lambda candidate: -candidate.predicted_db / candidate.cost)


class _Search:
    def __init__(
        self,
        facts: Mapping[str, OperatorFacts],
        parts: Mapping[ErrorPart, float],
        scheme: SchemeConfig,
        size_bytes: int,
    ) -> None:
        self._facts = facts
        self._by_index = {operator.operator.index: operator for operator in facts.values()}
        self._targets = named_targets(self._by_index[index].operator for index in sorted(self._by_index))
        self._parts = parts
        self._scheme = scheme
        self._size_bytes = max(size_bytes, 1)
        self._activations = max(sum(operator.elements for operator in facts.values()), 1)

    def candidates(self, family: Family, most_bytes: float) -> Iterator[Candidate]:
        """Yield the family's candidate with most gain per cost and, if it has several operators, the first alone."""
        offers = {
            operator.operator.name: offer
            for operator in self._facts.values()
            if operator.node is not None
            and self._parts.get((family.cause, operator.operator.name), 0.0) >= _LEAST_ENERGY
            and (offer := family.offer(operator, self._scheme)) is not None
        }
        ranked = sorted(offers, key=lambda name: -self._removed(name, offers[name]))[:_MOST_OPERATORS]
        drafts = [self._draft(family, ranked[:count], offers) for count in range(1, len(ranked) + 1)]
        useful = [draft for draft in drafts if draft.predicted_db >= LEAST_GAIN_DB and draft.more_bytes <= most_bytes]
        if useful:
            best = max(useful, key=lambda draft: draft.predicted_db / draft.cost)
            for draft in (best, useful[0]) if useful[0] is not best else (best,):
                with suppress(Conflict):
                    yield self._candidate(family, draft)

    def with_all_samples(self, samples: int) -> Iterator[Candidate]:
        """Yield the candidate that calibrates with all samples, if the scheme does not and values are clipped.

        `samples`: the number of the model's calibration samples.
        """
        used = self._scheme.calibration_samples
        clipped = {
            name: energy
            for name, operator in self._facts.items()
            if (energy := self._parts.get(("clipping", name), 0.0)) >= _LEAST_ENERGY
            and operator.node is not None
            and setting(self._scheme, operator.node, "range") is None
        }
        names = sorted(clipped, key=lambda name: -clipped[name])
        # A guess: what is clipped becomes rarer in proportion to the number of samples.
        left = min(used / samples, 1.0) if samples else 1.0
        predicted = gain_db(self._parts, {("clipping", name): left for name in names})
        if predicted >= LEAST_GAIN_DB:
            yield Candidate(
                cause="clipping",
                change=f"{samples} calibration samples",
                operators=tuple(names),
                where=self._where(names),
                scheme=replace(self._scheme, calibration_samples=samples),
                predicted_db=predicted,
                cost=_COST_OF_SAMPLES,
            )

    def _removed(self, name: str, offer: Offer) -> float:
        """Return the energy that an offer removes at an operator."""
        return sum(self._parts.get((cause, name), 0.0) * (1 - left) for cause, left in offer[1].items())

    def _draft(self, family: Family, names: Sequence[str], offers: Mapping[str, Offer]) -> "_Draft":
        remaining: dict[ErrorPart, float] = {
            (cause, name): left for name in names for cause, left in offers[name][1].items()
        }
        settings = self._settings(family, names, offers)
        changed = [operator for operator in self._facts.values() if operator.node in settings]
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
            predicted_db=gain_db(self._parts, remaining),
            cost=math.fsum(costs),
            more_bytes=more_bytes,
        )

    def _settings(self, family: Family, names: Sequence[str], offers: Mapping[str, Offer]) -> dict[str, Settings]:
        """Return the new settings by node: of the operators, of their readers, and of what is merged with them."""
        changed = {name: self._facts[name] for name in names}
        for name in names if family.with_readers else ():
            readers = (self._by_index.get(index) for index in self._facts[name].readers)
            changed |= {reader.operator.name: reader for reader in readers if reader is not None}
        settings: dict[str, Settings] = {}
        merged: dict[str, Settings] = {}
        for name, operator in changed.items():
            offer = offers.get(name) or family.offer(operator, self._scheme)
            if offer is None or operator.node is None:
                continue
            settings[operator.node] = offer[0]
            for index in operator.merged_with:
                other = self._by_index.get(index)
                needed = merged_settings(other, offer[0], self._scheme) if other is not None else None
                if other is not None and other.node is not None and needed is not None:
                    merged[other.node] = needed
        return merged | settings

    def _candidate(self, family: Family, draft: "_Draft") -> Candidate:
        """Return the candidate of a draft. Raises Conflict."""
        return Candidate(
            cause=family.cause,
            change=family.change,
            operators=draft.names,
            where=self._where(draft.names),
            scheme=with_settings(self._scheme, draft.settings),
            predicted_db=draft.predicted_db,
            cost=draft.cost,
        )

    def _where(self, names: Sequence[str]) -> str:
        targets = {self._targets[name] for name in names}
        modules = [self._facts[name].operator.module_path or name for name in names]
        return operators_phrase(targets.pop() if len(targets) == 1 else None, modules)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Draft:
    """A change of the first operators of a family's ranking."""

    names: tuple[str, ...]
    settings: Mapping[str, Settings]
    """The new settings by node, of the operators of `names` and of others that must change too."""
    predicted_db: float
    cost: float
    more_bytes: float
    """By how many bytes the weights grow."""
