"""The backends that there are."""

from __future__ import annotations

from conf.schema import BackendKind, SchemeConfig, SocConfig
from tasks.toolchain.backends.protocol import Backend


def backend_of(kind: BackendKind, scheme: SchemeConfig, soc: SocConfig | None) -> Backend:
    """Imported on demand: a backend's module costs seconds and may need libraries the others do not.

    QNN's without a `soc` quantizes and transforms, and compiles nothing.
    """
    if kind is BackendKind.qnn:
        from tasks.toolchain.backends.qnn import Qnn

        return Qnn(scheme, soc)
    if kind is BackendKind.xnnpack:
        from tasks.toolchain.backends.xnnpack import Xnnpack

        return Xnnpack()
    from tasks.toolchain.backends.portable import Portable

    return Portable()
