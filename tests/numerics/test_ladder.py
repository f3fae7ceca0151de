"""The rung to which most of the noise in the device's final outputs belongs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.numerics.ladder import worst_rung
from qnnsweep.tasks.records import Gap, OutputComparison
from qnnsweep.tasks.records.vocabulary import PREVIOUS_RUNG, RUNGS, SHIPPING_RUNGS

EXACT, NAN, UNKNOWN = None, "nonfinite_differs", "no_value"


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
        (outputs(exported=[EXACT], edge=[EXACT], designed=[EXACT], device=[EXACT], quantized=[EXACT]), None),
        (outputs(exported=[EXACT], edge=[30.0], designed=[30.0], device=[29.5]), "edge"),
        (outputs(exported=[120.0], edge=[60.0], designed=[30.0], device=[29.0]), "designed"),
        (outputs(exported=[120.0], edge=[60.0], designed=[60.0], device=[20.0]), "device"),
        (outputs(exported=[20.0], edge=[19.9], designed=[19.8], device=[19.8]), "exported"),
        # From 60 to 40 dB is less noise than from 20 to 15.
        (outputs(edge=[60.0], designed=[40.0]), "designed"),
        (outputs(edge=[20.0], designed=[15.0], device=[14.0]), "designed"),
        # The mean over samples of the noise, not of the dB.
        (outputs(edge=[10.0, 90.0], designed=[9.0, 9.0]), "designed"),
        (outputs(edge=[10.0, EXACT], designed=[10.0, 90.0]), "edge"),
        # docs/ladder.md: the converted graph is worse than the device, and is not on the path.
        (outputs(exported=[EXACT], quantized=[7.6], edge=[23.6], designed=[22.4], device=[22.8]), "edge"),
        (outputs(exported=[EXACT], quantized=[7.6], edge=[23.6], designed=[22.4], device=[7.7]), "device"),
        # Without the rung designed, its noise is counted at the device.
        (outputs(exported=[EXACT], quantized=[7.6], edge=[23.6], designed=[UNKNOWN], device=[7.7]), "device"),
        (outputs(exported=[EXACT], quantized=[7.6], edge=[23.6], designed=[UNKNOWN], device=[22.8]), "edge"),
        # The noise that a rung adds and a later rung takes away does not count.
        (outputs(exported=[EXACT], edge=[30.0], designed=[10.0], device=[28.0]), "edge"),
        (outputs(exported=[EXACT], edge=[10.0], designed=[30.0], device=[26.0]), "device"),
        # NaN is infinite noise: the first rung that has it is returned, even if another sample is finite.
        (outputs(exported=[EXACT], edge=[5.0], designed=[5.0], device=[NAN]), "device"),
        (outputs(exported=[EXACT], edge=[5.0], designed=[30.0, NAN], device=[NAN, NAN]), "designed"),
        (outputs(exported=[NAN], edge=[NAN], designed=[NAN], device=[NAN]), "exported"),
        # A zero reference with a value that is not zero has no SNR. Its noise is infinite too.
        (outputs(exported=[EXACT], edge=[20.0], designed=[20.0], device=["compared"]), "device"),
        (outputs(quantized=[NAN]), None),
        (outputs(device=[30.0]), "device"),
    ],
)
def test_the_worst_rung_adds_most_of_the_noise_of_the_device(rows: list[OutputComparison], rung: str | None) -> None:
    assert worst_rung(rows) == rung
    assert worst_rung(reversed(rows)) == rung


@given(st.sampled_from(SHIPPING_RUNGS), st.floats(0, 100), st.floats(0.1, 50))
def test_the_one_rung_that_adds_noise_is_the_worst(worst: str, level: float, lost: float) -> None:
    after = SHIPPING_RUNGS.index(worst)
    ratios = {rung: [level - lost if at >= after else level] for at, rung in enumerate(SHIPPING_RUNGS)}
    assert worst_rung(outputs(**ratios)) in (worst, "exported")
    # If the rungs before it are exact, no other rung adds noise.
    clean = {rung: [level if at >= after else EXACT] for at, rung in enumerate(SHIPPING_RUNGS)}
    assert worst_rung(outputs(**clean)) == worst


@given(st.lists(st.one_of(st.none(), st.floats(-50, 150), st.just(NAN)), min_size=1, max_size=3))
def test_the_converted_graph_is_never_the_worst_rung(ratios: list[float | str | None]) -> None:
    rows = outputs(exported=[EXACT], edge=[30.0], designed=[29.0], device=[28.0])
    assert worst_rung(rows + outputs(quantized=ratios)) == worst_rung(rows)


def test_every_rung_but_the_first_has_a_previous_rung_on_the_path() -> None:
    assert set(RUNGS) == {*SHIPPING_RUNGS, "quantized"}
    assert {**dict(zip(SHIPPING_RUNGS[1:], SHIPPING_RUNGS, strict=False)), "quantized": "exported"} == PREVIOUS_RUNG
