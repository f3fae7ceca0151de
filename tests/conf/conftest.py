"""A folder of configuration of a user's own, outside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

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
