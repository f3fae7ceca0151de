"""The comparison of the final outputs, rung by rung, on outputs that a test chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from qnnsweep.tasks.comparison.outputs import FinalOutputs
from qnnsweep.tasks.numerics.ladder import worst_rung
from qnnsweep.tasks.records import Blob, CapturedMethod, LoweredMethod, TensorSpec
from qnnsweep.tasks.results.outcome import finals
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import CAPTURED_METHOD, COMPARISON, EXPORTED_METHOD, LOWERED_METHOD, QUANTIZED_METHOD

SIGNAL = np.array([[3.0, -4.0]], np.float32)
NANS = np.full((1, 2), np.nan, np.float32)
LOGITS = TensorSpec(name="logits", shape=(1, 2), dtype="float32")


def with_sample_0(value: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the outputs of two samples. Those of sample 1 are those of eager PyTorch at every rung."""
    return {"0/0": value, "1/0": SIGNAL}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def cell(
    store: Store, designed: NDArray[Any] | str = SIGNAL, **rungs: NDArray[Any]
) -> tuple[LoweredMethod, CapturedMethod]:
    """Return the records of a cell with these outputs of sample 0. At all other rungs it is that of eager PyTorch.

    `designed`: the output of that rung, or the reason why the host cannot compute it.
    """

    def blob(value: NDArray[Any]) -> Blob:
        return store.put_bytes(save(with_sample_0(value)))

    blobs = {
        rung: blob(rungs.get(rung, SIGNAL))
        for rung in ("eager", "exported", "quantized", "lowered", "edge", "device", "debug")
    }
    exported = replace(
        EXPORTED_METHOD, outputs=(LOGITS,), outputs_eager=blobs["eager"], outputs_exported=blobs["exported"]
    )
    lowered = replace(
        LOWERED_METHOD,
        quantized=replace(QUANTIZED_METHOD, exported=exported, outputs_quantized=blobs["quantized"]),
        outputs_lowered=blobs["lowered"],
        outputs_edge=blobs["edge"],
        outputs_designed=None if isinstance(designed, str) else blob(designed),
        designed_unavailable=designed if isinstance(designed, str) else None,
    )
    debug = replace(CAPTURED_METHOD.debug[0], outputs=blobs["debug"])
    return lowered, replace(CAPTURED_METHOD, outputs=blobs["device"], debug=(debug,))


def read(store: Store, designed: NDArray[Any] | str, **rungs: NDArray[Any]) -> FinalOutputs:
    """Return the outputs of a cell."""
    return FinalOutputs.of(*cell(store, designed, **rungs), store)


def test_every_rung_is_compared_with_eager_pytorch_and_with_the_previous_rung(store: Store) -> None:
    final = read(
        store, SIGNAL * 1.01, lowered=SIGNAL * 1.05, edge=SIGNAL * 1.1, device=SIGNAL * 1.02, quantized=SIGNAL * 2
    )
    rows = [row for row in final.compare(classifier=True) if row.sample == 0]
    gaps = [None if row.gap.snr_db is None else round(row.gap.snr_db) for row in rows]
    previous = [
        (row.previous_rung, row.previous_status, None if row.previous_snr_db is None else round(row.previous_snr_db))
        for row in rows
    ]
    assert [(row.rung, row.status, gap, *before) for row, gap, before in zip(rows, gaps, previous, strict=True)] == [
        ("exported", "exact", None, None, None, None),
        ("lowered", "compared", 26, "exported", "compared", 26),
        ("edge", "compared", 20, "lowered", "compared", 26),
        ("designed", "compared", 40, "edge", "compared", 22),
        ("device", "compared", 34, "designed", "compared", 40),
        ("quantized", "compared", 0, "exported", "compared", 0),
    ]
    assert {(row.top1_reference, row.top1_actual, row.shape, row.why) for row in rows} == {(0, 0, (1, 2), None)}
    assert worst_rung(rows) == "device"


def test_a_rung_that_the_host_cannot_compute_has_every_row_with_the_reason(store: Store) -> None:
    final = read(store, "no such kernel", device=SIGNAL * 1.1)
    rows = list(final.compare(classifier=True))
    assert len(rows) == 6 * 2
    designed = [row for row in rows if row.rung == "designed"]
    assert [(row.status, row.why, row.shape, row.top1_actual, row.previous_status) for row in designed] == [
        ("no_value", "no such kernel", (1, 2), None, "no_value")
    ] * 2
    device = [row for row in rows if row.rung == "device"]
    assert [(row.status, row.why, row.previous_status) for row in device] == [
        ("compared", None, "no_value"), ("exact", None, "no_value"),
    ]  # fmt: skip
    assert {pair.subject.rung for pair in final.pairs()} == {"exported", "lowered", "edge", "device", "quantized"}
    summary = finals(replace(COMPARISON, outputs=tuple(rows)))
    assert (summary.final_difference, summary.device_difference, worst_rung(rows)) == ("finite", None, "device")


def test_nan_is_counted_and_is_infinite_noise_at_the_first_rung_that_has_it(store: Store) -> None:
    rows = list(read(store, SIGNAL, edge=SIGNAL * 1.5, device=NANS).compare(classifier=True))
    (device,) = [row for row in rows if (row.rung, row.sample) == ("device", 0)]
    assert (device.status, device.nonfinite_actual, device.nonfinite_reference) == ("nonfinite_differs", 2, 0)
    assert worst_rung(rows) == "device"
    summary = finals(replace(COMPARISON, outputs=tuple(rows)))
    assert (summary.final_difference, summary.final_snr_db) == ("infinite", None)
    assert (summary.device_difference, summary.device_snr_db) == ("infinite", None)


@pytest.mark.parametrize(
    ("shipping", "debug", "effect"),
    [
        (SIGNAL, SIGNAL, ("none", None)),
        (NANS, NANS, ("none", None)),
        (SIGNAL, SIGNAL * 1.5, ("finite", pytest.approx(6.02, abs=0.01))),
        (SIGNAL, NANS, ("infinite", None)),
        (SIGNAL * 0, SIGNAL, ("infinite", None)),
    ],
    ids=["equal", "both NaN", "half too large", "debug NaN", "shipping zeros"],
)
def test_a_debug_program_that_gives_nan_or_a_shipping_program_that_gives_zeros_is_no_match(
    store: Store, shipping: NDArray[Any], debug: NDArray[Any], effect: tuple[Any, Any]
) -> None:
    lowered, capture = cell(store, device=shipping, debug=debug)
    final = FinalOutputs.of(lowered, capture, store)
    assert final.observer_effect() == effect
    without = FinalOutputs.of(lowered, replace(capture, debug=()), store)
    assert without.observer_effect() == (None, None)
