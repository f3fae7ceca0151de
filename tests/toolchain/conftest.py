"""What runs in children must be importable there: they inherit this process's `sys.path`, and this folder is on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tasks.toolchain.child import Children
from tasks.toolchain.sdk import find_sdk, identity

if TYPE_CHECKING:
    from flows.cells import Means

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


class ChildrenWith(Protocol):
    def __call__(self, *, parallel: int = 2, deadline_s: float = 120, memory_bytes: int = 2**33) -> Children: ...


@pytest.fixture(scope="session")
def children_with(means: Means) -> ChildrenWith:
    """Children of the store in `means` with limits of one's own, from the same fork server."""
    sdk = find_sdk(os.environ, means.store.root / "toolchain")

    def make(*, parallel: int = 2, deadline_s: float = 120, memory_bytes: int = 2**33) -> Children:
        return Children(
            identity=identity(sdk),
            environment=sdk.environment(os.environ),
            store=means.store,
            parallel=parallel,
            deadline_s=deadline_s,
            memory_bytes=memory_bytes,
        )

    return make
