"""Packages that pip installs into a folder of a toolchain, from the index that pip is configured to use."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable

_DEADLINE_S = 1800


def install(requirement: str, target: Path, environ: Mapping[str, str]) -> None:
    """Install a package without those that it requires. Raises RequestError with pip's reason in one line."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--no-compile"]
    pip += ["--disable-pip-version-check", f"--target={target}", requirement]
    scratch = target.with_name("scratch")
    scratch.mkdir()
    try:
        ran = subprocess.run(
            pip,
            env=dict(environ) | {"TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequestError(f"pip did not install {requirement} within {_DEADLINE_S} s") from None
    shutil.rmtree(scratch)
    if ran.returncode:
        raise RequestError(f"pip cannot install {requirement}: {_reason(ran.stderr)}")


def _reason(errors: str) -> str:
    """Return pip's reason in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No space left" in line for line in lines):
        return "no space left on the disk; free some space, or set QNNSWEEP_TOOLCHAINS to a folder on another disk"
    if any("No module named pip" in line for line in lines):
        return "this Python environment has no pip; install it with `python -m ensurepip`"
    stated = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    unreachable = any("connection" in line.lower() for line in lines if line.startswith("WARNING:"))
    hint = "; the package index cannot be reached" if unreachable else "; check pip's index with `pip config list`"
    return printable(next(reversed(stated or lines), "pip gave no reason")) + hint
