"""The flow of one bisection: it searches the change that makes a cell bad, and certifies both sides.

Every probe is an ordinary cell. A bisection that was interrupted continues when it is repeated: the probes before the
interruption come from the cache, and lead to the same decisions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnsweep.conf.errors import did_you_mean, one_of
from qnnsweep.conf.names import DEFAULT_ORACLE
from qnnsweep.conf.plan import Plan
from qnnsweep.flows.bisection.certificate import CertifiedFlip, certified_flip
from qnnsweep.flows.bisection.probes import Probe, Probes
from qnnsweep.flows.bisection.request import Bisection, Difference, parsed
from qnnsweep.flows.cells.graph import ProgressCallback
from qnnsweep.flows.runs.flow_state import run_flow
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.flows.session import begin, command, no_progress
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.report.format import plural
from qnnsweep.tasks.results.bisection import Answer, AxisSearch, smallest_changes
from qnnsweep.tasks.results.oracle import Oracle, introduced_snr_db, parsed_oracle


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectionResult:
    run: SweepResult
    bisection: Bisection
    oracle: Oracle
    probes: Sequence[Probe]
    """All probes: on an axis in the order of the axis, otherwise in the order in which they were measured."""
    flips: Sequence[CertifiedFlip]
    smallest: Sequence[Difference]
    """The smallest set of differences that makes GOOD bad; empty on an axis."""
    reason: str
    """What was found, or why nothing was."""
    is_undecided: bool
    """Whether nothing can be said, because an end could not be measured."""


def run_bisect(
    bisection: Bisection,
    plan: Plan,
    oracle: Oracle,
    line: Sequence[str],
    on_progress: ProgressCallback = no_progress,
    on_prepare: Callable[[int], None] = lambda _count: None,
    on_probe: Callable[[Probe], None] = lambda _probe: None,
) -> BisectionResult:
    """Search the change that makes a cell bad. `plan`: that of the good end; see also `run_sweep` and `Probes`."""
    with begin(plan, line, on_progress) as session:
        ends = (bisection.good, bisection.bad)
        probes = Probes(session, oracle, ends, bisection.folders, on_prepare, on_probe)
        if oracle.operator is not None:
            _check_operator(oracle.operator, probes.measure(ends))
        pairs, smallest = _on_axis(bisection, probes) if bisection.points else _of_two(bisection, probes)
        result = session.finish([probe.cell for probe in probes.all if probe.cell is not None])
    good, bad = probes.of(ends)
    return BisectionResult(
        run=result,
        bisection=bisection,
        oracle=oracle,
        probes=probes.of(bisection.points) or probes.all,
        flips=[certified_flip(*pair, bisection.folders, plan.masked_names) for pair in pairs],
        smallest=smallest,
        reason=_reason(len(pairs), smallest, bad, good),
        is_undecided=not pairs and "untestable" in (bad.answer, good.answer),
    )


@run_flow()
def bisect(overrides: list[str], config_dirs: list[str], oracle: str = DEFAULT_ORACLE) -> BisectionResult:
    """Search the change that makes a cell bad. `overrides`: the words of the command line; see `parsed`."""
    folders = [Path(folder) for folder in config_dirs]
    bisection = parsed(overrides, folders)
    line = command_line(overrides, folders, oracle)
    return run_bisect(bisection, bisection.good.plan(folders), parsed_oracle(oracle), line)


def command_line(words: Sequence[str], folders: Sequence[Path], oracle: str) -> tuple[str, ...]:
    """Return the command line that repeats the bisection."""
    options = () if oracle == DEFAULT_ORACLE else (f"--oracle={oracle}",)
    return command(words, folders, *options, verb="bisect")


Pair = tuple[Probe, Probe, Sequence[Probe]]
"""Two probes with different answers, and the untestable probes between them."""


def _on_axis(bisection: Bisection, probes: Probes) -> tuple[list[Pair], Sequence[Difference]]:
    points = bisection.points

    def measure(numbers: Sequence[int]) -> list[Answer]:
        return [probe.answer for probe in probes.measure([points[number] for number in numbers])]

    pairs: list[Pair] = []
    for flip in AxisSearch(len(points), measure).run():
        before, *between, after = probes.of(points[flip.before : flip.after + 1])
        pairs.append((before, after, between))
    return pairs, ()


def _of_two(bisection: Bisection, probes: Probes) -> tuple[list[Pair], Sequence[Difference]]:
    bad, good = probes.measure((bisection.bad, bisection.good))
    if (bad.answer, good.answer) != ("bad", "good"):
        return [], ()

    def measure(sets: Sequence[Sequence[Difference]]) -> list[Answer]:
        return [probe.answer for probe in probes.measure([bisection.with_differences(chosen) for chosen in sets])]

    smallest, _ = smallest_changes(bisection.differences, measure)
    (worse,) = probes.of([bisection.with_differences(smallest)])
    without = ([other for other in smallest if other != difference] for difference in smallest)
    better = probes.of([bisection.with_differences(others) for others in without])
    return [(probe, worse, ()) for probe in better if probe.answer == "good"] or [(good, worse, ())], smallest


def _check_operator(operator: str, ends: Sequence[Probe]) -> None:
    """Raise RequestError if neither end has the operator."""
    known = {name for end in ends for name in introduced_snr_db(end.tables)} if any(end.cell for end in ends) else set()
    if known and operator not in known:
        problem = f"no such operator; {did_you_mean(operator, known)}{one_of(known)}"
        raise RequestError(problem, key="--oracle", value=operator)


def _reason(flips: int, smallest: Sequence[Difference], bad: Probe, good: Probe) -> str:
    if smallest:
        return " together with ".join(difference.label for difference in smallest)
    if flips:
        return plural(flips, "flip")
    for name, end in (("BAD", bad), ("GOOD", good)):
        if end.answer == "untestable":
            return f"not decided: {name} is untestable: {end.judgement.why}"
    if bad.answer == good.answer:
        return f"no flip: both ends are {bad.answer}"
    return "BAD is good and GOOD is bad: exchange them, or turn the oracle round"
