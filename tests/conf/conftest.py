"""A folder of the user's own configuration, outside the repository, and the message that refuses a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

Refused = Callable[..., str]

NET = """\
name: {name}
factory: my_package.nets:net
arguments:
  width: 2
inputs:
  - {{name: x, shape: [1, 3, 8, 8]}}
calibration: {{source: my_package.data:samples}}
evaluation: {{source: my_package.data:samples, count: 3}}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with model/my_net.yaml and model/my_other_net.yaml."""
    folder = tmp_path / "mine"
    (folder / "model").mkdir(parents=True)
    for name in ("my_net", "my_other_net"):
        (folder / "model" / f"{name}.yaml").write_text(NET.format(name=name))
    return folder


@pytest.fixture
def refused(mine: Path) -> Refused:
    """Return a function that loads overrides which must be refused, and returns the message, which is one line."""

    def load_refused(*overrides: str) -> str:
        with pytest.raises(RequestError) as caught:
            load(["model=my_net", *overrides], config_dirs=[mine])
        assert str(caught.value).isprintable()
        return str(caught.value)

    return load_refused
