"""The line of the user's code in a stack trace."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.records.source_lines import line_in_words, users_line

LIBRARY = "/x/lib/site-packages"
OWN = """  File "/home/me/net.py", line 12, in forward
    return self.head(x)
"""
PACKAGE = f"""  File "{LIBRARY}/transformers/bert.py", line 34, in forward
    return self.attention(x)
"""
TORCH = f"""  File "{LIBRARY}/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^
"""
WITHOUT_CODE = 'File "/home/me/net.py", line 7, in forward\n  File "/home/me/net.py", line 8, in block\n'
TRACER = f"""  File "{LIBRARY}/torch/_dynamo/functional_export.py", line 232, in forward
    res = self._export_root(*args, **kwargs)
"""
LONG = f'File "/home/me/net.py", line 3, in forward\n    {"x" * 90}'


@pytest.mark.parametrize("trace", ["", f'File "{LIBRARY}/torch/nn.py", line 3, in f', "File x, line y"])
def test_a_trace_without_a_line_of_the_user_has_none(trace: str) -> None:
    assert users_line(trace) is None


@pytest.mark.parametrize(
    ("trace", "line", "words"),
    [
        (OWN + PACKAGE + TORCH, 12, "`return self.head(x)` (net.py:12)"),
        (WITHOUT_CODE, 8, "net.py:8"),
        (LONG, 3, f"`{'x' * 80}…` (net.py:3)"),
    ],
    ids=["called a package", "no code", "long"],
)
def test_the_innermost_line_of_the_user_is_quoted_with_its_place(trace: str, line: int, words: str) -> None:
    assert (users_line(trace), line_in_words(trace)) == (("/home/me/net.py", line), words)


def test_a_trace_within_packages_ends_before_pytorch_begins() -> None:
    assert line_in_words(PACKAGE + TORCH) == "`return self.attention(x)` (bert.py:34)"
    assert line_in_words(TORCH) == "`return F.linear(input, self.weight, self.bias)` (linear.py:134)"
    assert line_in_words("") is None


def test_a_call_of_pytorchs_tracer_is_no_line_of_a_model() -> None:
    assert line_in_words(TRACER) is None
    assert line_in_words(OWN + TRACER) == "`return self.head(x)` (net.py:12)"
