"""The causes of an output's error in words, from the budget: what an ablation removed, and where."""

import math
from collections.abc import Container, Iterable, Iterator, Sequence

from qnnsweep.tasks.numerics.reported import budget_of, on_sample
from qnnsweep.tasks.numerics.verdict import wrong_integers
from qnnsweep.tasks.records import SIGNIFICANT_SHARE, Comparison, ErrorShare, OperatorComparison, OutputComparison
from qnnsweep.tasks.records.source_lines import quoted_line, users_line
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.repair.wording import named_targets, plural_noun

_MOST_CAUSES = 3
_MOST_OF_IT = 0.7  # an operator without which this part of the cause's effect is gone stands for the cause
_MOST_NAMES = 3
_SPARSE = 0.05  # a value that uses a smaller part of its grid has a grid that is too wide for it
_AT_ONE: dict[Cause, str] = {
    "weights": "weights of {}",
    "bias": "the bias of {} does not fit its grid",
    "clipping": "clipping in {}",
    "resolution": "the grid of {}",
    "overflow": "float16 overflow in {}",
    "device": "device arithmetic in {}",
}
_ELEMENTWISE = ("aten.add.", "aten.sub.", "aten.mul.", "aten.div.", "aten.maximum.", "aten.minimum.", "aten.where.")
"""The operators whose constants are addends, factors or bounds, which nobody calls weights."""
_OF_CONSTANT = "the rounded constant of {}"
_AT_SEVERAL: dict[Cause, str] = {
    **_AT_ONE,
    "bias": "biases of {} that do not fit their grids",
    "resolution": "the grids of {}",
}
_NOT_OF_THE_SCHEME: tuple[Cause, ...] = ("device", "observer", "unexplained")
_ELSEWHERE: dict[Cause, str] = {
    "graph": "the converted graph itself",
    "weights": "weights",
    "bias": "biases that do not fit their grids",
    "clipping": "clipping",
    "resolution": "rounding of values",
    "overflow": "float16 overflow",
    "device": "device arithmetic",
    "observer": "an error that vanishes while operators are logged",
    "unexplained": "unexplained",
}


def causes(comparison: Comparison, output: OutputComparison) -> str | None:
    """Return the causes of an output's error with their shares, which add up to 100 %; None if they are not known."""
    shares = [share for share in budget_of(comparison, output) if share.share is not None]
    totals: dict[Cause, ErrorShare] = {share.cause: share for share in shares if share.operator is None}
    if not totals:
        return None
    operators = [share for share in shares if share.operator is not None]
    first = operators[0].cause if operators else None
    ranked = sorted(totals.values(), key=lambda total: (total.cause != first, -(total.share or 0.0)))
    mentioned = [total for total in ranked if (total.share or 0.0) >= SIGNIFICANT_SHARE][:_MOST_CAUSES]
    percents = _percents([total.share or 0.0 for total in mentioned])
    largest = max(totals.values(), key=lambda total: total.share or 0.0)
    words = _Words(comparison, operators, output, largest.cause)
    phrases = [f"{words.of(total)} {percent} %" for total, percent in zip(mentioned, percents, strict=True)]
    rest = 100 - sum(percents)
    if rest > 0:
        phrases.append(f"rest {rest} %" if phrases else "no cause above 10 %")
    return ", ".join([*phrases, *words.reasons(totals.values(), mentioned)])


def _percents(shares: Sequence[float]) -> list[int]:
    """Return shares in whole percent, which add up to 100 with the rest: the largest remainders are rounded up.

    Together, shares can be above 1, if other causes cancel a part of them. Then each is rounded alone.
    """
    rest = 1 - sum(shares)
    if rest < 0:
        return [round(100 * share) for share in shares]
    exact = [100 * share for share in (*shares, rest)]
    up = sorted(range(len(exact)), key=lambda number: math.floor(exact[number]) - exact[number])
    up = up[: 100 - sum(map(math.floor, exact))]
    return [math.floor(percent) + (number in up) for number, percent in enumerate(exact[:-1])]


def is_of_the_scheme(comparison: Comparison, output: OutputComparison) -> bool:
    """Return whether less than a tenth of an output's error is of the device, or of unknown origin."""
    others = _shares_of(_NOT_OF_THE_SCHEME, comparison, output)
    return others is not None and others < SIGNIFICANT_SHARE


def is_of_the_device(comparison: Comparison, output: OutputComparison) -> bool:
    """Return whether at least a tenth of an output's error is of the device. Its design can have the same error."""
    return (_shares_of(("device",), comparison, output) or 0.0) >= SIGNIFICANT_SHARE


def _shares_of(counted: Container[Cause], comparison: Comparison, output: OutputComparison) -> float | None:
    """Return the sum of the shares of some causes in an output's error; None if no share is known."""
    totals = [share for share in budget_of(comparison, output) if share.operator is None and share.share is not None]
    return sum(share.share or 0.0 for share in totals if share.cause in counted) if totals else None


def _in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def _modules(rows: Iterable[OperatorComparison]) -> list[str]:
    """Return the modules of operators, or the names of those that are in none, each once."""
    return [*dict.fromkeys(row.operator.module_path or row.operator.name for row in rows)]


class _Words:
    """The words for the operators of one output's budget.

    `operators`: the one whose absence removes most first. `largest`: the cause with the largest share.
    """

    def __init__(
        self, comparison: Comparison, operators: Sequence[ErrorShare], output: OutputComparison, largest: Cause
    ) -> None:
        self._comparison, self._operators, self._output = comparison, operators, output
        self._largest = largest
        self._rows = {row.operator.name: row for row in reversed(comparison.operators)}
        self._targets = named_targets(row.operator for row in comparison.operators)
        self._named: str | None = None  # the operator that the phrase before named

    def of(self, total: ErrorShare) -> str:
        """Return where a cause arises: in one operator, or in several, of which the first is named."""
        of_cause = [share for share in self._operators if share.cause == total.cause]
        if not of_cause:
            return _ELSEWHERE[total.cause] + (self._in_debug_program() if total.cause == "observer" else "")
        first, least = of_cause[0], 0.01 * (total.share or 0.0)
        counted = [share for share in of_cause if share is first or (share.share or 0.0) > least]
        if len(counted) == 1 or self._is_most(first, of_cause):
            place = "it" if first.operator == self._named else self._place(first)
            self._named = first.operator
            if place == "it" and total.cause == "resolution":
                return f"its grid{_in_brackets(self._use(first))}"
            target = self._targets.get(first.operator or "", "")
            is_constant = total.cause == "weights" and target.startswith(_ELEMENTWISE)
            phrase = (_OF_CONSTANT if is_constant else _AT_ONE[total.cause]).format(place)
            return phrase + (_in_brackets(self._use(first)) if total.cause == "resolution" else "")
        targets = {self._targets.get(share.operator or "", "input") for share in counted}
        noun = plural_noun(next(iter(targets)) if len(targets) == 1 else None)
        self._named = None
        use = self._use(first) if total.cause == "resolution" else ""
        most = f"{self._place(first)}, which {use}" if use else self._place(first)
        # The cause that is named first is that of the operator whose absence removes most. Another can have more of it.
        label = "most of all" if first is self._operators[0] and total.cause != self._largest else "most"
        return _AT_SEVERAL[total.cause].format(f"{len(counted)} {noun} ({label}: {most})")

    def reasons(self, totals: Iterable[ErrorShare], mentioned: Sequence[ErrorShare]) -> Iterator[str]:
        """Yield why some effects are not known, and which operators have wrong booleans or integers."""
        why = next((share.why for share in totals if share.why), None)
        is_unexplained = any(total.cause == "unexplained" for total in mentioned)
        if why and (is_unexplained or not self._operators):
            yield f"because {why}"
        if is_unexplained and (names := _modules(wrong_integers(self._comparison.operators))):
            yield f"and the device computes wrong booleans or integers in {', '.join(names)}"

    def _in_debug_program(self) -> str:
        """Return where the debug program is wrong, for an error of the shipping program that it does not have."""
        rows = on_sample(self._comparison.operators, self._output)
        wrong = _modules(row for row in rows if row.verdict == "introduced")
        names = [f"`{name}`" for name in wrong][:_MOST_NAMES]
        names += [f"{len(wrong) - len(names)} more"] if len(wrong) > len(names) else []
        listed = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
        return f" (the debug program is wrong in {listed})" if names else ""

    def _is_most(self, first: ErrorShare, of_cause: Sequence[ErrorShare]) -> bool:
        """Return whether one operator has most of the effect of its cause."""
        whole = sum(share.share or 0.0 for share in of_cause)
        return (first.share or 0.0) >= _MOST_OF_IT * whole

    def _place(self, share: ErrorShare) -> str:
        """Return the module of an operator, else the line of the user's model, else the operator's name."""
        row = self._rows.get(share.operator or "")
        if share.module_path:
            return f"`{share.module_path}`"
        if row is None:  # only operators have rows
            return f"the input `{share.operator}`"
        line = users_line(row.operator.stack_trace)
        return f"`{share.operator}`" + (f" ({quoted_line(*line, '')})" if line else "")

    def _use(self, share: ErrorShare) -> str:
        """Return how few values of its grid a value uses; empty if it uses enough."""
        row = self._rows.get(share.operator or "")
        qparams = None if row is None else row.operator.quantization
        if row is None or qparams is None or row.parts.range_used is None or row.parts.codes_used is None:
            return ""
        if row.parts.range_used >= _SPARSE:
            return ""
        return f"uses {row.parts.codes_used} of {qparams.quant_max - qparams.quant_min + 1} values"
