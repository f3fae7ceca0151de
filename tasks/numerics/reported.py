"""What a cell reports: the device's final output with the most noise, and the rows about its sample."""

from collections.abc import Iterable, Sequence

from qnnsweep.tasks.numerics.noise import noise_to_signal
from qnnsweep.tasks.numerics.verdict import WorstOperator, worst_operator
from qnnsweep.tasks.records import Comparison, ErrorShare, OperatorComparison, OutputComparison


def reported_output(comparison: Comparison) -> OutputComparison | None:
    """Return the device's final output with the most noise, the first of equal ones. None if no output has noise.

    Integers, of which the share of equal ones counts, are reported only if no other output has noise.
    """
    device = [row for row in comparison.outputs if row.rung == "device" and row.status not in ("no_value", "diverged")]
    for rows in ([row for row in device if row.equal_elements is None], device):
        worst = max(rows, key=_noise, default=None)
        if worst is not None and _noise(worst) > 0:
            return worst
    return None


def reported_budget(comparison: Comparison) -> list[ErrorShare]:
    """Return the budget of the reported output on its sample; empty if there is none."""
    worst = reported_output(comparison)
    return [] if worst is None else budget_of(comparison, worst)


def budget_of(comparison: Comparison, output: OutputComparison) -> list[ErrorShare]:
    """Return the budget of a final output on its sample; empty if there is none."""
    place = output.output_index, output.sample
    return [share for share in comparison.budget if (share.output_index, share.sample) == place]


def reported_operators(comparison: Comparison) -> Sequence[OperatorComparison]:
    """Return the rows of the operators and the requantized values on the sample of the reported output.

    They are those of all captured samples if no output has noise, or if this sample was not captured.
    """
    rows = (*comparison.operators, *comparison.requantized)
    worst = reported_output(comparison)
    return (on_sample(rows, worst) if worst is not None else ()) or rows


def reported_worst_operator(comparison: Comparison) -> WorstOperator | None:
    """Return the worst operator on the sample of the reported output; see `worst_operator`."""
    return worst_operator(reported_operators(comparison), reported_budget(comparison))


def on_sample(rows: Iterable[OperatorComparison], output: OutputComparison) -> list[OperatorComparison]:
    """Return the rows of operators that are about the method and the sample of a final output."""
    return [row for row in rows if (row.operator.method, row.sample) == (output.method, output.sample)]


def _noise(row: OutputComparison) -> float:
    return noise_to_signal(row.status, row.gap.snr_db)
