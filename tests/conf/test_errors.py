"""The error for a wrong request: its message consists of its attributes, which survive pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

from qnnsweep.conf.errors import QnnsweepError, RequestError
from qnnsweep.tasks import errors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RequestError("the sweep is empty"), "the sweep is empty"),
        (RequestError("too long", key="model.name"), "model.name: too long"),
        (RequestError("1 or more", key="measure.iterations", value="0"), "measure.iterations=0: 1 or more"),
        (RequestError("empty", key="artifacts", value=""), "artifacts=: empty"),
    ],
    ids=str,
)
def test_the_message_names_the_key_and_the_value_where_they_are_known(error: RequestError, message: str) -> None:
    assert str(error) == message
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(copied), vars(copied)) == (message, vars(error))


def test_the_tasks_have_the_same_classes() -> None:
    assert (errors.QnnsweepError, errors.RequestError) == (QnnsweepError, RequestError)
