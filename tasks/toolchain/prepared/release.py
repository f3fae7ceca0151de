"""Another release of ExecuTorch in the folder of a toolchain. All packages that it requires are those installed."""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from qnnsweep.conf.errors import printable
from qnnsweep.tasks.toolchain.prepared.overlay import PYTHON
from qnnsweep.tasks.toolchain.prepared.packages import install

_EXECUTORCH = "executorch"
_COMPILED_FOR = ("torch", "torchao")
_READ_WHEN_USED = {".py", ".so", ".fbs", ".yaml"}


def install_release(version: str, folder: Path, environ: Mapping[str, str]) -> list[Path]:
    """Install a release into the folder of a toolchain, and return its files that a process reads.

    Raises RequestError, with a message of one line, if pip cannot install it.
    """
    target = folder / PYTHON
    install(f"{_EXECUTORCH}=={version}", target, environ)
    # Without it, modules that the release does not have would be imported from the installed release.
    (target / _EXECUTORCH / "__init__.py").touch()
    return sorted(path for path in (target / _EXECUTORCH).rglob("*") if path.suffix in _READ_WHEN_USED)


def unmet_requirements(folder: Path) -> str:
    """Return which other version of PyTorch the release in the folder of a toolchain requires.

    The text is one line that continues an error message. It is empty if the installed version is accepted.
    """
    release = next(iter(metadata.distributions(name=_EXECUTORCH, path=[str(folder / PYTHON)])))
    required = [Requirement(text) for text in release.requires or ()]
    unmet = [
        f"{package.name}{package.specifier} ({installed} is installed)"
        for package in required
        if package.name in _COMPILED_FOR
        and not package.specifier.contains(installed := metadata.version(package.name), prereleases=True)
    ]
    return f"; it requires {' and '.join(map(printable, unmet))}" if unmet else ""
