"""The QNN libraries: their folder, their build, and the versions of the whole toolchain."""

import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path

from qnnsweep.conf.toolchains import caches_folder
from qnnsweep.tasks.errors import EnvironmentUnusable, raise_shortage
from qnnsweep.tasks.records import Toolchain

LIBRARY_FOLDER = Path("lib", "x86_64-linux-clang")
PASSES_OFF = "QNNSWEEP_PASSES_OFF"
OPERATORS_SKIPPED = "QNNSWEEP_OPERATORS_SKIPPED"
"""The environment variables with the passes and operators that a prepared toolchain switches off, with commas."""
_NEEDED = ("libQnnHtp.so", "libQnnSystem.so")
_BUILD_ID = re.compile(rb"v\d+\.\d+\.\d+\.\d{6,}")
_COMMIT = re.compile(r"^git_version\b[^=\n]*= '([0-9a-f]{40})'$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sdk:
    """A folder with the layout of a QNN SDK. `build`: the build id in its libraries. `origin`: its source."""

    root: Path
    build: str
    origin: str
    runtime_libraries: tuple[Path, ...]
    """The folders of other libraries that the QNN libraries link against, such as the wheel's own libc++."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for a process that loads QNN. The dynamic linker reads it only at process start."""
        folders = map(str, (self.root / LIBRARY_FOLDER, *self.runtime_libraries))
        search = filter(None, (*folders, inherited.get("LD_LIBRARY_PATH")))
        return {"QNN_SDK_ROOT": str(self.root), "LD_LIBRARY_PATH": os.pathsep.join(search)}


def find_sdk(environ: Mapping[str, str], links: Path | None = None) -> Sdk:
    """Return the SDK at `QNN_SDK_ROOT`; if this variable is not set, the SDK in the installed onnxruntime-qnn wheel.

    `links`: the folder in which links to the wheel's libraries are created, with the layout of an SDK; by default one
    among the caches of this user, because every file in it is a library that processes load. Raises EnvironmentUnusable
    if there is no SDK, or if it lacks the HTP libraries.
    """
    if chosen := environ.get("QNN_SDK_ROOT"):
        root = Path(chosen)
        missing = [name for name in _NEEDED if not (root / LIBRARY_FOLDER / name).is_file()]
        if missing:
            raise EnvironmentUnusable(
                f"QNN_SDK_ROOT={chosen}: no {', '.join(missing)} in {root / LIBRARY_FOLDER}",
                remedy="point it at an unpacked Qualcomm AI Engine Direct SDK, or unset it to use the onnxruntime-qnn "
                "wheel",
            )
        return Sdk(root=root, build=build_id(root), origin="QNN_SDK_ROOT", runtime_libraries=())

    wheel = util.find_spec("onnxruntime_qnn")
    if wheel is None or not wheel.submodule_search_locations:
        raise EnvironmentUnusable(
            "no QNN libraries: QNN_SDK_ROOT is not set and onnxruntime-qnn is not installed",
            remedy="run `pip install onnxruntime-qnn==2.5.0` or set QNN_SDK_ROOT",
        )
    package = Path(next(iter(wheel.submodule_search_locations)))
    version = metadata.version("onnxruntime-qnn")
    of_package = hashlib.sha256(bytes(package)).hexdigest()[:8]  # each Python environment has links of its own
    root = (links or caches_folder(environ) / "libraries" / of_package) / f"qnn-{version}"
    try:
        _link_all(package, root / LIBRARY_FOLDER)
    except OSError as error:
        raise_shortage(error)
        remedy = "set XDG_CACHE_HOME to a folder that you can write to"
        raise EnvironmentUnusable(f"{root}: cannot be written: {error.strerror}", remedy=remedy) from error
    return Sdk(
        root=root,
        build=build_id(root),
        origin=f"onnxruntime-qnn {version}",
        runtime_libraries=(package.parent / "onnxruntime_qnn.libs",),
    )


def identity(sdk: Sdk) -> Toolchain:
    """Return the versions that determine the result of a compilation. Only metadata is read; nothing is imported."""
    return Toolchain(
        python=platform.python_version(),
        torch=metadata.version("torch"),
        executorch=metadata.version("executorch"),
        torchao=metadata.version("torchao"),
        qnn=sdk.build,
        executorch_commit=_installed_commit(),
    )


def _installed_commit() -> str | None:
    """Return the git commit from which the installed ExecuTorch was built; None if it does not say."""
    package = util.find_spec("executorch")
    folders = package.submodule_search_locations if package else None
    return next((commit for folder in folders or () if (commit := commit_of(Path(folder)))), None)


def commit_of(package: Path) -> str | None:
    """Return the git commit from which ExecuTorch was built. `package`: its folder. Nothing is imported."""
    try:
        commit = _COMMIT.search((package / "version.py").read_text())
    except OSError as error:
        raise_shortage(error)
        return None
    return commit[1] if commit else None


def _link_all(package: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library in package.glob("*.so"):
        link = folder / library.name
        if link.is_symlink() and link.readlink() == library:
            continue
        # Another process may create the same link: create it under a temporary name, then rename it atomically.
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            new_link = Path(temporary, library.name)
            new_link.symlink_to(library)
            new_link.replace(link)


def build_id(root: Path) -> str:
    """Return the build id in the bytes of the libQnnHtp.so of an SDK. Raises EnvironmentUnusable if it has none."""
    library = root / LIBRARY_FOLDER / "libQnnHtp.so"
    status = library.stat()
    build = _build_id(library.resolve(), status.st_mtime_ns, status.st_size)
    if build is None:
        raise EnvironmentUnusable(f"{library} carries no QNN build id: it is not Qualcomm's libQnnHtp.so")
    return build


@cache
def _build_id(library: Path, *_status: int) -> str | None:
    build = _BUILD_ID.search(library.read_bytes())
    return build[0].decode() if build else None
