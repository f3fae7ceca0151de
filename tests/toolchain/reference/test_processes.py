"""Independent computations in several processes: the results are those of one process, whatever happens to a fork."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from qnnsweep.tasks.toolchain.reference import processes
from qnnsweep.tasks.toolchain.reference.processes import in_processes


def test_the_results_have_the_order_of_the_items() -> None:
    assert in_processes(lambda item: item * item, range(11)) == [item * item for item in range(11)]
    assert in_processes(str, []) == []


def test_large_arrays_and_derivatives_come_from_all_processes() -> None:
    def gradient(seed: int) -> np.ndarray:
        values = torch.full((1000, 1000), float(seed), requires_grad=True)
        (values * values).sum().backward()
        assert values.grad is not None
        return values.grad.numpy()

    gradient(0)  # the forks must be able to compute derivatives after this process has computed some
    for result, seed in zip(in_processes(gradient, range(4)), range(4), strict=True):
        np.testing.assert_array_equal(result, np.full((1000, 1000), 2.0 * seed))


def test_arrays_of_every_kind_come_from_all_processes_and_can_be_changed() -> None:
    def arrays(seed: int) -> dict[str, np.ndarray]:
        matrix = np.arange(24.0).reshape(4, 6) + seed
        flags = matrix[1:, ::2] > 9
        return {
            "whole": matrix,
            "columns": matrix.T,
            "part": matrix[::2],
            "empty": matrix[:0],
            "flags": flags,
            "all": matrix[0, 0],
        }

    for seed, result in enumerate(in_processes(arrays, range(9))):
        result["whole"] += 1
        result["whole"] -= 1
        for name, value in arrays(seed).items():
            np.testing.assert_array_equal(result[name], value, err_msg=name)
            assert result[name].dtype == value.dtype


def test_the_items_of_a_fork_that_dies_are_computed_again() -> None:
    here = os.getpid()

    def compute(item: int) -> int:
        if os.getpid() != here:
            os._exit(9)
        return item + 1

    assert in_processes(compute, range(5)) == [1, 2, 3, 4, 5]


def test_the_items_of_a_fork_that_does_not_end_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LEAST_PATIENCE_S", 0.5)
    here = os.getpid()

    def compute(item: int) -> int:
        while os.getpid() != here:
            pass
        time.sleep(0.1)  # so that a fork gets an item
        return item + 1

    assert in_processes(compute, range(5)) == [1, 2, 3, 4, 5]


def test_an_error_is_raised_where_the_results_are_needed() -> None:
    def compute(item: int) -> float:
        return 1 / (item - 3)

    with pytest.raises(ZeroDivisionError):
        in_processes(compute, range(5))


def test_pytorch_has_as_many_threads_as_before() -> None:
    before = torch.get_num_threads()
    assert set(in_processes(lambda _: torch.get_num_threads(), range(4))) == {1}
    assert torch.get_num_threads() == before
