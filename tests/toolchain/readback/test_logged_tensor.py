"""A logged tensor as a view into the debug buffer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.records.logs import LoggedTensor
from qnnsweep.tasks.toolchain.readback.etdump import tensor


def logged(**changes: object) -> LoggedTensor:
    plain = LoggedTensor(
        run=1,
        chain_index=0,
        instruction_id=0,
        delegate_identifier="conv@0",
        name=None,
        scalar_type="int16",
        shape=(2, 3),
        strides=(3, 1),
        offset=0,
        is_output=False,
        delegate_argument=False,
        list_index=None,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_a_tensor_is_a_read_only_view_with_its_own_strides() -> None:
    buffer = np.arange(20, dtype="<i2")
    view = tensor(logged(shape=(2, 3), strides=(1, 2), offset=4), buffer.view(np.uint8))
    assert view.tolist() == [[2, 4, 6], [3, 5, 7]]
    assert np.shares_memory(view, buffer)
    assert not view.flags.writeable


def test_a_dimension_of_one_may_claim_any_stride() -> None:
    assert tensor(logged(shape=(1, 2), strides=(2**61, 1)), memoryview(bytes(4))).tolist() == [[0, 0]]


def test_bfloat16_comes_back_as_the_float32_of_equal_value() -> None:
    halves = (np.array([1.5, -2.0, 0.0], "<f4").view("<u4") >> 16).astype("<u2")
    widened = tensor(logged(scalar_type="bfloat16", shape=(3,), strides=(1,)), halves.view(np.uint8))
    assert (widened.dtype, widened.tolist()) == (np.float32, [1.5, -2.0, 0.0])


@pytest.mark.parametrize(
    "entry",
    [
        logged(shape=(2, 3), offset=9),
        logged(shape=(2, 3), offset=2**62),
        logged(shape=(2**20, 2**20), strides=(0, 0)),
        logged(shape=(3, 2), strides=(2**62, 1)),
    ],
)
def test_a_tensor_outside_the_buffer_is_refused(entry: LoggedTensor) -> None:
    with pytest.raises(EvidenceError, match="reaches outside the debug buffer of 20 bytes"):
        tensor(entry, memoryview(bytes(20)))


def test_an_empty_tensor_needs_no_bytes_at_all() -> None:
    assert tensor(logged(shape=(0, 3), offset=-1), memoryview(b"")).shape == (0, 3)


def test_a_type_numpy_lacks_is_refused_by_name() -> None:
    with pytest.raises(EvidenceError, match="float8_e5m2"):
        tensor(logged(scalar_type="float8_e5m2"), memoryview(bytes(20)))
