"""Columns of Arrow: what their conversion imports."""

from __future__ import annotations

from tests.program import Program

LINES = """
import sys
import pyarrow as pa
from qnnsweep.tasks.storage.columns import STRING, column
print(column(["a", None], STRING, "here").to_pylist(), "pandas" in sys.modules)
import pandas
print(pa.table({"a": [1]}).to_pandas().to_dict(), pa.array(pandas.Series([1, 2])).to_pylist())
"""


def test_a_column_is_converted_without_pandas_and_pyarrow_can_still_convert_to_pandas(program: Program) -> None:
    ran = program.python(LINES)
    assert (ran.stdout, ran.stderr) == ("['a', None] False\n{'a': {0: 1}} [1, 2]\n", "")
