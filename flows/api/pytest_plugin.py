"""The fixture `qnn` of pytest, with which a test of a model is one line.

    def test_net(qnn):
        qnn(model, samples, scheme="8a8w").assert_ok(snr_db=30)

The text of a failure is the sentence of the cell: what costs the accuracy, and what to type next.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from qnnsweep.flows.api.calls import DebugRun

_ARTIFACTS = "qnn_artifacts"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that says where the cache and the reports are."""
    parser.addini(
        _ARTIFACTS, "The folder of qnnsweep's cache, tables and reports.", type="paths", default=["artifacts"]
    )


@pytest.fixture
def qnn(pytestconfig: pytest.Config) -> "Callable[..., DebugRun]":
    """`qnnsweep.debug` with the folder of the ini option `qnn_artifacts`, by default `artifacts` in pytest's root."""
    from qnnsweep.flows.api.calls import debug

    (folder,) = pytestconfig.getini(_ARTIFACTS)
    return partial(debug, artifacts=pytestconfig.rootpath / folder)
