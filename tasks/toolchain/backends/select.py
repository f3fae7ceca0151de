"""The backends by their names."""

from conf.backends import implementation
from conf.names import SHIPPED_BACKENDS
from tasks.storage.digest import digest
from tasks.toolchain.backends.backend import Backend
from tasks.toolchain.source_digest import functions_digest


def backend_of(kind: str) -> Backend:
    return implementation(kind)


def backend_code(kind: str) -> str:
    """Return a digest of a backend's code and of its compiler's version, for cache keys; empty if the backend ships.

    For the backends that ship, cache keys have the versions of the stages and of the toolchain instead.
    """
    return "" if kind in SHIPPED_BACKENDS else digest([functions_digest([kind]), backend_of(kind).version])
