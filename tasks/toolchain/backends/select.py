"""The backends by their names."""

from conf.backends import implementation
from conf.names import SHIPPED_BACKENDS
from tasks.storage.digest import digest
from tasks.toolchain.backends.backend import Backend
from tasks.toolchain.source_digest import functions_digest


def backend_of(kind: str) -> Backend:
    return implementation(kind)


def backend_code(kind: str) -> str:
    """Return what the results of a backend of another vendor depend on besides its name, for cache keys.

    The versions of stages and of the toolchain stand for the backends that ship.
    """
    return "" if kind in SHIPPED_BACKENDS else digest([functions_digest([kind]), backend_of(kind).version])
