"""The source of a small program: what it reads, its grids, and what is never written into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qnnsweep.tasks.errors import EvidenceError
from tests.repro.cases import case, case_of_parts

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]  # torch and ExecuTorch warn at import


def small_program(*arguments: Any, **keywords: Any) -> Any:
    """Call `qnnsweep.tasks.repro.program.small_program`, whose module imports torch."""
    from qnnsweep.tasks.repro.program import small_program

    return small_program(*arguments, **keywords)


def test_the_source_has_the_operators_with_their_grids_and_the_constants_that_they_read() -> None:
    program = small_program(case(), {1, 2}, [1, 2])
    ends = "-2147483648, 2147483647, torch.int32"
    assert program.forward.splitlines() == [
        "    def forward(self, x0):",
        "        x0 = grid(x0, 0.5, 10, 0, 255, torch.uint8)",
        f"        dequantized = torch.ops.quantized_decomposed.dequantize_per_tensor.default(self.c0, 0.25, 0, {ends})",
        "        mul_tensor = torch.ops.aten.mul.Tensor(x0, dequantized)",
        "        mul_tensor = grid(mul_tensor, 0.5, 10, 0, 255, torch.uint8)",
        "        hardtanh = torch.ops.aten.hardtanh.default(mul_tensor, 0.0, 6.0)",
        "        hardtanh = grid(hardtanh, 0.5, 10, 0, 255, torch.uint8)",
        "        return mul_tensor, hardtanh",
    ]
    assert {name: array.tolist() for name, array in program.inputs.items()} == {"x0": [1.0, 2.0, 3.0, 0.0]}
    assert {name: array.tolist() for name, array in program.constants.items()} == {"c0": [4, 8, 12, -(2**31)]}


def test_a_program_reads_the_devices_value_of_an_operator_that_it_does_not_have() -> None:
    program = small_program(case(), {2}, [2])
    assert {name: array.tolist() for name, array in program.inputs.items()} == {"x0": [5.0, 4.0, 9.0, 0.0]}
    assert program.constants == {}


def test_the_elements_of_a_tuple_are_put_on_their_grids_and_the_tuple_is_not() -> None:
    program = small_program(case_of_parts(), {0, 1, 2, 3}, [3])
    assert program.forward.splitlines() == [
        "    def forward(self, x0):",
        "        x0 = grid(x0, 0.5, 10, 0, 255, torch.uint8)",
        "        split_with_sizes_copy = torch.ops.aten.split_with_sizes_copy.default(x0, [2, 2])",
        "        getitem = split_with_sizes_copy[0]",
        "        getitem = grid(getitem, 0.5, 10, 0, 255, torch.uint8)",
        "        getitem_1 = split_with_sizes_copy[1]",
        "        getitem_1 = grid(getitem_1, 0.5, 10, 0, 255, torch.uint8)",
        "        mul_tensor = torch.ops.aten.mul.Tensor(getitem, getitem_1)",
        "        mul_tensor = grid(mul_tensor, 0.5, 10, 0, 255, torch.uint8)",
        "        return mul_tensor,",
    ]


def test_in_floats_there_is_no_grid_and_the_constants_are_dequantized() -> None:
    program = small_program(case(), {1}, [1], floats=True)
    assert program.forward.splitlines() == [
        "    def forward(self, x0):",
        "        mul_tensor = torch.ops.aten.mul.Tensor(x0, self.c0)",
        "        return mul_tensor,",
    ]
    assert np.array_equal(program.constants["c0"], np.array([1.0, 2.0, 3.0, -(2.0**29)], np.float32))


@pytest.mark.parametrize("target", ["aten.mul.Tensor(0); import os #", "os.system", "aten.mul.Tensor\n.x"])
def test_a_target_that_is_no_name_is_not_written(target: str) -> None:
    with pytest.raises(EvidenceError, match="is no name of an operator"):
        small_program(case(target), {1}, [1])
