"""The toolchain of a cell: that of this Python environment, or a prepared one."""

import os
from contextlib import suppress
from pathlib import Path

from qnnsweep.conf.toolchains import ToolchainConfig
from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk, identity
from qnnsweep.tasks.toolchain.prepared import in_use
from qnnsweep.tasks.toolchain.prepared.record import read_record


def toolchain_of(toolchain: ToolchainConfig) -> tuple[dict[str, str], dict[str, str], Toolchain]:
    """Return a toolchain's environment variables for workers and for the runner of programs, and its versions.

    Programs are always run by the ExecuTorch of this Python environment, with QNN's libraries of the toolchain.
    Raises EnvironmentUnusable.
    """
    if toolchain.folder is None:
        sdk = find_sdk(os.environ)
        environment = sdk.environment(os.environ)
        return environment, environment, identity(sdk)
    folder = Path(toolchain.folder)
    with suppress(OSError):  # the record of a folder that does not exist cannot be read either
        in_use.hold(folder)
    prepared = read_record(folder)
    prepared.check_files()
    return prepared.environment(os.environ), prepared.sdk.environment(os.environ), prepared.identity
