"""The record of a prepared toolchain: its folder, its files, its QNN build, and what its probe showed."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from qnnsweep.conf.toolchains import toolchains_folder
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.toolchain.backends.qnn.sdk import OPERATORS_SKIPPED, PASSES_OFF, Sdk, commit_of, identity
from qnnsweep.tasks.toolchain.prepared.overlay import PYTHON, split_commit

RECORD = "toolchain.json"
OPTIONS = "toolchain"
FILES = "files"
_LISTS = ("passes_off", "operators_skipped", "unverified")
SDK = "sdk"


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryFile:
    """A library or a Python file of the toolchain. `path`: relative to the toolchain's folder; it can be a link."""

    path: str
    size: int
    changed_ns: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedProperty:
    """A property that the probe asked of the compiler, and the value in the bytes of the program."""

    soc: str
    name: str
    asked: str
    got: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedToolchain:
    """A toolchain that `qnnsweep toolchain add` prepared."""

    name: str
    folder: Path
    origin: str
    """The package and its version, or the path of the user's SDK."""
    build: str
    """QNN's build id, for example `v2.51.0.260929181845`, read from the bytes of libQnnHtp.so."""
    executorch: str
    """The version of ExecuTorch with which the toolchain was probed."""
    bridge: str | None
    """The bridge that ExecuTorch needs for this release; None if it needs none. See docs/toolchains.md."""
    files: tuple[LibraryFile, ...]
    release: str | None = None
    """The release of ExecuTorch in the toolchain's folder; None for the installed one."""
    commit: str | None = None
    """The clone and the commit whose Python files of the QNN backend are used; None for those installed."""
    python_files: tuple[LibraryFile, ...] = ()
    """The files of that release, or the Python files of that commit."""
    passes_off: tuple[str, ...] = ()
    operators_skipped: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    """The packages and folders of whose files no digest was known when they were added."""
    probed: tuple[ProbedProperty, ...]

    @property
    def digest(self) -> str:
        """The digest of the names and contents of all libraries."""
        return _digest(self.files)

    @property
    def identity(self) -> Toolchain:
        """The versions and digests that are part of the cache keys."""
        installed = identity(self.sdk)
        return replace(
            installed,
            executorch=self.release or installed.executorch,
            qnn_files=self.digest,
            bridge=self.bridge,
            executorch_files=_digest(self.python_files) if self.python_files else None,
            passes_off=",".join(self.passes_off) or None,
            operators_skipped=",".join(self.operators_skipped) or None,
            executorch_commit=self._executorch_commit or installed.executorch_commit,
        )

    @property
    def _executorch_commit(self) -> str | None:
        """The commit of ExecuTorch's files in the toolchain's folder; None if the folder has none."""
        if self.commit is not None:
            return split_commit(self.commit)[1]
        return None if self.release is None else commit_of(self.folder / PYTHON / "executorch")

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for a process that uses the toolchain."""
        variables = self.sdk.environment(inherited)
        if self.python_files:
            search = filter(None, (str(self.folder / PYTHON), inherited.get("PYTHONPATH")))
            variables["PYTHONPATH"] = os.pathsep.join(search)
        if self.passes_off:
            variables[PASSES_OFF] = ",".join(self.passes_off)
        if self.operators_skipped:
            variables[OPERATORS_SKIPPED] = ",".join(self.operators_skipped)
        return variables

    @property
    def changes(self) -> str:
        """What the toolchain changes in ExecuTorch, in one line; empty if it changes nothing."""
        parts = (
            f"release {self.release}" if self.release else "",
            f"QNN backend of {self.commit}" if self.commit else "",
            f"passes off: {', '.join(self.passes_off)}" if self.passes_off else "",
            f"operators skipped: {', '.join(self.operators_skipped)}" if self.operators_skipped else "",
        )
        return "; ".join(filter(None, parts))

    @property
    def sdk(self) -> Sdk:
        libraries = self.folder / "package" / "onnxruntime_qnn.libs"  # with the package's own libc++
        return Sdk(
            root=self.folder / SDK,
            build=self.build,
            origin=self.origin,
            runtime_libraries=(libraries,) if libraries.is_dir() else (),
        )

    @property
    def provisional(self) -> str | None:
        """The settings that did not arrive in the probe's programs, in one line; `not probed`; None if all arrived."""
        if not self.probed:
            return "not probed"
        lost = (f"{row.name} for {row.soc}: asked {row.asked}, got {row.got}" for row in self.probed)
        return "; ".join(text for text, row in zip(lost, self.probed, strict=True) if row.asked != row.got) or None

    def check_files(self, *, read_all: bool = False) -> None:
        """Raise EnvironmentUnusable if a library is missing or has another content than when it was added.

        A library with the same size and time is not read, unless `read_all` is set.
        """
        for file in (*self.files, *self.python_files):
            path = self.folder / file.path
            try:
                status = path.stat()
                same = (status.st_size, status.st_mtime_ns) == (file.size, file.changed_ns)
                if (same and not read_all) or file_sha256(path) == file.sha256:
                    continue
                problem = "has another content than when it was added"
            except OSError as error:
                problem = f"cannot be read: {error.strerror}"
            raise EnvironmentUnusable(
                f"toolchain {self.name}: {path} {problem}",
                remedy=f"run `qnnsweep toolchain remove {self.name}`, then `qnnsweep toolchain add` again",
            )


def read_record(folder: Path) -> PreparedToolchain:
    """Return the toolchain in a folder. Raises EnvironmentUnusable if the folder has none."""
    try:
        fields: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
        files, python_files = (
            tuple(LibraryFile(**file) for file in fields.pop(key, ())) for key in ("files", "python_files")
        )
        lists: dict[str, Any] = {key: tuple(fields.pop(key, ())) for key in _LISTS}
        probed = tuple(ProbedProperty(**row) for row in fields.pop("probed"))
        return PreparedToolchain(
            **fields, **lists, folder=folder, files=files, python_files=python_files, probed=probed
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EnvironmentUnusable(
            f"toolchain.folder={folder}: no prepared toolchain ({type(error).__name__})",
            remedy="prepare one with `qnnsweep toolchain add`; `qnnsweep toolchain list` shows those that there are",
        ) from error


def folder_of(root: Path, name: str) -> Path:
    """Return the folder of the toolchain of a name. `root`: the folder of all. Raises EnvironmentUnusable."""
    option = root / OPTIONS / f"{name}.yaml"
    try:
        return Path(yaml.safe_load(option.read_bytes())["folder"])
    except (OSError, yaml.YAMLError, TypeError, KeyError) as error:
        problem = f"{option}: names no folder ({type(error).__name__})"
        raise EnvironmentUnusable(problem, remedy="remove the file, and run `qnnsweep toolchain add` again") from error


def record_bytes(toolchain: PreparedToolchain) -> bytes:
    """Return the content of the record's file. It does not contain the folder, which can be moved."""
    fields = asdict(toolchain)
    del fields["folder"]
    return json.dumps(fields, indent=1).encode()


def prepared_toolchains(environ: Mapping[str, str]) -> Iterator[PreparedToolchain | EnvironmentUnusable]:
    """Yield all prepared toolchains by name; instead of one that cannot be read, yield the error."""
    root = toolchains_folder(environ)
    for option in sorted((root / OPTIONS).glob("*.yaml")):
        try:
            yield read_record(folder_of(root, option.stem))
        except EnvironmentUnusable as error:
            yield error


def _digest(files: Iterable[LibraryFile]) -> str:
    return hashlib.sha256("".join(f"{file.path} {file.sha256}\n" for file in files).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
