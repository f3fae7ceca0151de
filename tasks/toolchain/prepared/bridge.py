"""The bridge between ExecuTorch and a QNN release whose structure of the HTP device's configuration is another one."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qnnsweep.conf.errors import printable
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER
from qnnsweep.tasks.toolchain.prepared.record import PreparedToolchain

BRIDGE = "device structure"
"""The name of the only bridge: see `libQnnHtp_bridge.c`."""
_SOURCE = Path(__file__).with_name("libQnnHtp_bridge.c")
_HTP = "libQnnHtp.so"
_DEADLINE_S = 120


def with_bridge(toolchain: PreparedToolchain, environ: Mapping[str, str]) -> PreparedToolchain:
    """Compile the bridge into the place of the link to libQnnHtp.so. The link moves to the folder `bridged`."""
    compiler = next(filter(None, map(shutil.which, filter(None, (environ.get("CC"), "cc", "gcc", "clang")))), None)
    if compiler is None:
        raise EnvironmentUnusable(
            f"QNN {toolchain.build} needs the bridge, and there is no C compiler to build it",
            remedy="install gcc, or set CC",
        )
    place = toolchain.sdk.root / LIBRARY_FOLDER / _HTP
    moved = place.parent / "bridged" / _HTP
    moved.parent.mkdir()
    target, folder = place.resolve(), toolchain.folder.resolve()
    # A relative link stays right when the folder is renamed.
    moved.symlink_to(os.path.relpath(target, moved.parent.resolve()) if folder in target.parents else target)
    place.unlink()
    options = ("-shared", "-fPIC", "-O2", f"-Wl,-soname,{_HTP}", "-Wl,-z,nodelete", "-Wl,-z,now")
    problem = _problem([compiler, *options, "-o", str(place), str(_SOURCE), "-ldl"])
    if problem is not None:
        raise EnvironmentUnusable(f"{compiler} cannot build the bridge: {problem}", remedy="install libc6-dev")
    old, new = (str(path.relative_to(toolchain.folder)) for path in (place, moved))
    files = tuple(replace(file, path=new) if file.path == old else file for file in toolchain.files)
    return replace(toolchain, bridge=BRIDGE, files=files)


def _problem(argv: Sequence[str]) -> str | None:
    """Run a command. Return None if it succeeds, otherwise the last line of its errors."""
    ran = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S, check=False)
    lines = ran.stderr.strip().splitlines()
    return None if ran.returncode == 0 else printable(lines[-1] if lines else f"exit code {ran.returncode}")
