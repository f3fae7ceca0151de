"""The rung at which accuracy is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.numerics.ladder import steepest
from tasks.records import Gap, OutputComparison
from tasks.records.vocabulary import RUNGS

EXACT, INFINITE = None, "nonfinite_differs"


def outputs(**ratios: list[float | str | None]) -> list[OutputComparison]:
    """Return outputs by rung and sample. An item is the SNR in dB, None for exact, or a status without a gap."""
    return [
        OutputComparison(
            rung=rung, sample=sample, sample_name=str(sample), output_index=0, output="y", shape=(1,),
            status="exact" if ratio is None else ratio if isinstance(ratio, str) else "compared",
            gap=Gap(snr_db=ratio if isinstance(ratio, float) else None), previous_rung=None, previous_snr_db=None,
            label=None, top1_reference=None, top1_actual=None,
        )
        for rung, of in ratios.items()
        for sample, ratio in enumerate(of)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "rung"),
    [
        ([], None),
        (outputs(exported=[EXACT], quantized=[EXACT], edge=[EXACT], device=[EXACT]), None),
        (outputs(exported=[EXACT], quantized=[30.0], edge=[30.0], device=[29.5]), "quantized"),
        (outputs(exported=[120.0], quantized=[60.0], edge=[60.0], device=[20.0]), "device"),
        (outputs(exported=[20.0], quantized=[19.9], edge=[19.9], device=[19.8]), "exported"),
        # The converted graph is worse than the device, whose rung therefore loses nothing.
        (outputs(exported=[EXACT], quantized=[5.8], edge=[40.0], device=[22.6]), "quantized"),
        # From 60 to 40 dB is less noise than from 20 to 15.
        (outputs(quantized=[60.0], edge=[40.0]), "edge"),
        (outputs(quantized=[20.0], edge=[15.0], device=[14.0]), "edge"),
        # The mean over samples of the noise, not of the dB.
        (outputs(quantized=[10.0, 90.0], edge=[9.0, 9.0]), "edge"),
        (outputs(quantized=[10.0, EXACT], edge=[10.0, 90.0]), "quantized"),
        # Outputs without a ratio are left out.
        (outputs(quantized=[30.0], edge=[INFINITE], device=[20.0]), "device"),
        (outputs(quantized=[INFINITE]), None),
        (outputs(device=[30.0]), "device"),
    ],
)
def test_the_steepest_rung_is_the_one_that_adds_most_noise(rows: list[OutputComparison], rung: str | None) -> None:
    assert steepest(rows) == rung
    assert steepest(reversed(rows)) == rung


@given(st.permutations(list(RUNGS)), st.floats(0, 100), st.floats(0.1, 50))
def test_the_one_rung_that_adds_noise_is_the_steepest(order: list[str], level: float, lost: float) -> None:
    worst_rung = order[0]
    after = list(RUNGS).index(worst_rung)
    ratios = {rung: [level - lost if at >= after else level] for at, rung in enumerate(RUNGS)}
    if after == 0:
        ratios = {rung: [level] for rung in RUNGS}
    assert steepest(outputs(**ratios)) in (worst_rung, "exported")
    # If the rungs before it are exact, no other rung adds noise.
    clean = {rung: [level if at >= after else EXACT] for at, rung in enumerate(RUNGS)}
    assert steepest(outputs(**clean)) == worst_rung
