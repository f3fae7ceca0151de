"""The samples of a certificate: which of the later samples neither the calibration nor the search has used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save

from qnnsweep.tasks.records import Blob, ExportedMethod, Place
from qnnsweep.tasks.records.keys import tensor_key
from qnnsweep.tasks.results.unseen import unseen_samples
from qnnsweep.tasks.storage.store import Store
from tests.sample_records import EXPORTED_METHOD

if TYPE_CHECKING:
    from collections.abc import Sequence


def stored(store: Store, values: Sequence[int]) -> Blob:
    return store.put_bytes(
        save({tensor_key(sample, "image"): np.full(3, value, np.float32) for sample, value in enumerate(values)})
    )


def method(
    store: Store, calibration: Sequence[int], evaluation: Sequence[int], name: str | None = None
) -> ExportedMethod:
    """A method whose samples have one input, with these values."""
    return replace(
        EXPORTED_METHOD,
        method=name,
        calibration=stored(store, calibration),
        calibration_samples=len(calibration),
        evaluation=stored(store, evaluation),
        sample_names=tuple(map(str, evaluation)),
        labels=(None,) * len(evaluation),
    )


def test_samples_of_the_calibration_and_of_the_search_and_repeated_ones_are_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = method(store, calibration=[7, 8], evaluation=[1, 2, 3, 7, 1, 4, 3])
    assert unseen_samples([one], 2, store) == ([2, 5], 3)


def test_a_sample_of_several_methods_is_left_out_if_one_of_them_has_read_its_inputs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    both = [
        method(store, calibration=[7, 8], evaluation=[1, 2, 7, 7], name="encode"),
        method(store, calibration=[9], evaluation=[1, 2, 3, 9], name="decode"),
    ]
    assert unseen_samples(both, 1, store) == ([1], 2), "encode has read 7, and decode 9"
    same = [method(store, [], [5], name="encode"), method(store, [5], [6], name="decode")]
    assert unseen_samples(same, 0, store) == ([0], 0), "another method has read the value"


def test_without_an_unseen_sample_of_every_method_nothing_is_certified(tmp_path: Path) -> None:
    store = Store(tmp_path)
    uneven = [method(store, [], [1, 2, 3], name="encode"), method(store, [], [1], name="decode")]
    assert unseen_samples(uneven, 1, store) == ([], 2)


def test_a_sequence_is_left_out_if_all_of_its_steps_were_used(tmp_path: Path) -> None:
    """All sequences begin with the same step."""
    store = Store(tmp_path)
    places = [Place(sequence=sequence, step=step) for sequence in range(4) for step in (0, 1)]
    steps = method(store, calibration=[1, 8], evaluation=[1, 5, 1, 6, 1, 5, 1, 8], name="decode")
    assert unseen_samples([replace(steps, positions=tuple(places))], 1, store) == ([1], 2)
    assert replace(steps, positions=tuple(places)).samples_of([1, 3]) == [2, 3, 6, 7]
