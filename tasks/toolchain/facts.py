"""What a finished program is, decoded from its bytes: what the lowering was told is not asked. Runs in a child."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.errors import EvidenceError
from tasks.program_facts import DelegateFacts, ProgramFacts
from tasks.records import Blob
from tasks.storage.store import Store
from tasks.toolchain.program import Delegate, read_program
from tasks.toolchain.qnn_context import read_context
from tasks.toolchain.qnn_options import COMPILE_SPEC, read_options
from tasks.toolchain.sdk import LIBRARY_FOLDER

QNN = "QnnBackend"


def program_facts(program: Blob, store: Store) -> ProgramFacts:
    """Raises EvidenceError for a blob that is no sound program. A delegate that cannot be read says why."""
    read = read_program(store.read(program))
    return ProgramFacts(
        inputs=read.inputs,
        outputs=read.outputs,
        delegates=tuple(_qnn(delegate) if delegate.backend == QNN else _plain(delegate) for delegate in read.delegates),
        kernel_calls=read.kernel_calls,
    )


def _qnn(delegate: Delegate) -> DelegateFacts:
    options = context = unread = None
    try:
        options = read_options(delegate.compile_specs.get(COMPILE_SPEC, b""))
        context = read_context(delegate.processed, _system_library())
    except EvidenceError as error:
        unread = str(error)
    return DelegateFacts(
        backend=delegate.backend,
        size=len(delegate.processed),
        calls=delegate.calls,
        soc=options.soc if options else None,
        arch=options.arch if options else None,
        vtcm_mib=options.vtcm_mib if options else None,
        precision=options.precision if options else None,
        dumps=options.dumps if options else None,
        context=context,
        unread=unread,
    )


def _plain(delegate: Delegate) -> DelegateFacts:
    return DelegateFacts(
        backend=delegate.backend,
        size=len(delegate.processed),
        calls=delegate.calls,
        soc=None,
        arch=None,
        vtcm_mib=None,
        precision=None,
        dumps=None,
        context=None,
        unread=None,
    )


def _system_library() -> Path:
    return Path(os.environ["QNN_SDK_ROOT"], LIBRARY_FOLDER, "libQnnSystem.so")
