"""The use of the grids of a model's inputs, over the samples that a repair may look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from qnnsweep.tasks.comparison.input_uses import input_uses
from qnnsweep.tasks.records import InputUse, Quantization, TensorSpec
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import EXPORTED_METHOD, LOWERED_METHOD, QUANTIZED_METHOD

# From -1.0 to 1.55.
GRID = Quantization(scale=(0.01,), zero_point=(100,), quant_min=0, quant_max=255, dtype="uint8", axis=None)
PER_CHANNEL = replace(GRID, scale=(0.01, 0.02), zero_point=(0, 0), axis=0)
SAMPLES = {
    "0/image": np.array([0.0, -1.004, 1.554], np.float32),
    "1/image": np.array([-1.006, 9.0, np.inf], np.float32),
    "2/image": np.array([-99.0, 99.0, np.nan], np.float32),
    **{f"{sample}/ids": np.array([5, 6, 7]) for sample in range(3)},
    **{f"{sample}/channels": np.ones(2, np.float32) for sample in range(3)},
    **{f"{sample}/nothing": np.full(3, np.nan, np.float32) for sample in range(3)},
}


@pytest.mark.parametrize(
    ("choosable", "expected"),
    [
        (1, InputUse(input="image", least=pytest.approx(-1.004), largest=pytest.approx(1.554), clipped_elements=0)),
        (2, InputUse(input="image", least=pytest.approx(-1.006), largest=9.0, clipped_elements=2)),
    ],
)
def test_the_samples_that_may_be_chosen_count_and_only_their_finite_elements(
    choosable: int, expected: InputUse, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    names = ("image", "ids", "channels", "nothing")
    exported = replace(
        EXPORTED_METHOD,
        evaluation=store.put_bytes(save(SAMPLES)),
        inputs=tuple(TensorSpec(name=name, shape=(3,), dtype="float32") for name in names),
    )
    lowered = replace(
        LOWERED_METHOD,
        quantized=replace(QUANTIZED_METHOD, exported=exported),
        input_qparams=(GRID, None, PER_CHANNEL, GRID),
        choosable=choosable,
    )
    assert list(input_uses(lowered, store)) == [expected]
