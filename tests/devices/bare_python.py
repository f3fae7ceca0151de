"""A Python as on a board: the packages of ONNX Runtime, what they need, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ON_A_DEVICE = ("numpy", "onnxruntime", "onnxruntime-qnn")
"""The packages that a device with `runner=onnxruntime` needs."""


def bare_python(folder: Path, *packages: str) -> str:
    """Make a Python environment whose packages are links to those of this environment. Return its interpreter.

    `packages`: by default `ON_A_DEVICE`. The packages that they require are linked too.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in sorted(_with_requirements(packages or ON_A_DEVICE)):
        found = distribution(package)
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(found.locate_file(name))))
    return str(folder / "bin" / "python")


def _with_requirements(packages: tuple[str, ...]) -> set[str]:
    """Return the packages and all that they require, without extras."""
    found: set[str] = set()
    pending = list(packages)
    while pending:
        package = pending.pop()
        if package not in found:
            found.add(package)
            required = map(Requirement, distribution(package).requires or ())
            pending += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found
