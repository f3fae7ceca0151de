"""The lookup of a backend by its name, and the digest of a backend's code."""

from qnnsweep.conf.backends import implementation
from qnnsweep.conf.names import SHIPPED_BACKENDS
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain.backends.backend import Backend
from qnnsweep.tasks.toolchain.source_digest import functions_digest


def backend_of(kind: str) -> Backend:
    return implementation(kind)


def backend_code(kind: str) -> str:
    """Return a digest of a backend's code and of its compiler's version, for cache keys.

    For a backend of qnnsweep itself, return an empty string: its cache keys contain the versions of the stages and of
    the toolchain instead.
    """
    return "" if kind in SHIPPED_BACKENDS else digest([functions_digest([kind]), backend_of(kind).version])
