"""The page of a repair."""

from __future__ import annotations

from typing import Any

from qnnsweep.tasks.records.repair_rows import CertificateRow, RepairRow
from qnnsweep.tasks.records.tables import columns
from qnnsweep.tasks.report.repair import chart, render_repair
from tests.sample_tables import RUN


def step(number: int, size: int, snr_db: float | None, *, accepted: bool = True, soc: str = "SM8650") -> dict[str, Any]:
    row: dict[str, Any] = {column.name: None for column in columns(RepairRow)}
    return row | {
        "model": "digits", "scheme": "8a8w", "soc": soc, "step": number, "size_bytes": size * 1024,
        "mean_snr_db": snr_db, "accepted": accepted, "candidate": f"change {number}" if number else None,
        "why": "a <reason>",
    }  # fmt: skip


def test_the_line_joins_the_steps_that_no_other_step_beats_and_the_worst_soc_counts() -> None:
    steps = [
        step(0, 100, 20.0), step(0, 110, 21.0, soc="SM8550"), step(1, 120, 25.0, accepted=False), step(2, 150, 24.0),
        step(3, 160, 30.0), step(4, 90, None),
    ]  # fmt: skip
    drawing = chart(steps)
    assert [(point["step"], point["kind"]) for point in drawing["points"]] == [
        (0, "accepted"),
        (1, "reverted"),
        (2, "accepted"),
        (3, "accepted"),
    ]
    at = {point["step"]: f"{point['x']} {point['y']}" for point in drawing["points"]}
    assert drawing["front"] == f"M{at[0]}L{at[1]}L{at[3]}", "step 2 is larger and worse than step 1"
    assert [tick["text"] for tick in drawing["x_ticks"]] == ["110", "122", "135", "148", "160"]
    assert [tick["text"] for tick in drawing["y_ticks"]] == ["20.0", "22.5", "25.0", "27.5", "30.0"]


def test_the_page_has_every_step_the_certificate_and_the_scheme_and_loads_nothing() -> None:
    certificate: dict[str, Any] = {column.name: None for column in columns(CertificateRow)}
    certificate |= {
        "soc": "SM8650", "side": "after", "certificate_samples": 16, "final_snr_db": 31.4, "mean_snr_db": 33.25,
        "mean_snr_db_low": 32.0, "mean_snr_db_high": 34.0, "size_bytes": 2048,
    }  # fmt: skip
    page = render_repair(
        RUN, "the target is reached", [step(0, 100, 20.0), step(1, 90, 31.0)], [certificate], "name: a<b"
    )
    for text in ("change 1", "a &lt;reason&gt;", "33.2 (32.0 to 34.0)", "name: a&lt;b", "the target is reached"):
        assert text in page
    assert "<script" not in page
    assert "src=" not in page
