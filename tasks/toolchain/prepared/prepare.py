"""The preparation of a toolchain: QNN's libraries in a folder of their own, with the bridge if ExecuTorch needs it, and
another release of ExecuTorch, or the Python files of another commit, if that is wanted.

Everything is built in a temporary folder, which is renamed when it is complete. No file of Qualcomm's is changed.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from qnnsweep.conf.errors import RequestError, one_of, printable
from qnnsweep.conf.toolchains import DEFAULT_TOOLCHAIN, NAME_FORM, is_toolchain_name, toolchains_folder
from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.storage.atomic import remove_stale, temporary_name
from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER, build_id, find_sdk
from qnnsweep.tasks.toolchain.prepared import in_use
from qnnsweep.tasks.toolchain.prepared.answer import ProbeFailed
from qnnsweep.tasks.toolchain.prepared.bridge import with_bridge
from qnnsweep.tasks.toolchain.prepared.names import names
from qnnsweep.tasks.toolchain.prepared.overlay import (
    ToolchainUnusable,
    commit_files,
    commit_sha,
    lay_over,
    split_commit,
)
from qnnsweep.tasks.toolchain.prepared.packages import DIGESTS, install
from qnnsweep.tasks.toolchain.prepared.probe import probe
from qnnsweep.tasks.toolchain.prepared.record import (
    FILES,
    OPTIONS,
    RECORD,
    SDK,
    LibraryFile,
    PreparedToolchain,
    file_sha256,
    folder_of,
    read_record,
    record_bytes,
)
from qnnsweep.tasks.toolchain.prepared.release import install_release, unmet_requirements
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted

PACKAGE = "onnxruntime-qnn"
RELEASES = {"2.47": "2.3.0", "2.48": "2.4.0", "2.49": "2.5.0", "2.50": "2.6.0", "2.51": "2.7.0"}
"""Maps the QNN releases that are on the package index to the versions of the package that has their libraries."""
_HTP = "libQnnHtp.so"
_PARTIAL = "partial"
_LEAST_FREE_BYTES = 1 << 30
_LEAST_FREE_BYTES_OF_LINKS = 64 << 20


def add(name: str | None, wanted: Wanted, environ: Mapping[str, str], *, is_probed: bool = True) -> PreparedToolchain:
    """Prepare a toolchain and return it. `is_probed`: whether to compile and run the probe with it.

    Raises RequestError, with a message of one line, if nothing could be prepared; it is ToolchainUnusable if there can
    be no such toolchain.
    """
    root = toolchains_folder(environ)
    with _one_line(root, wanted):
        name = name or wanted.default_name
    if not is_toolchain_name(name) or name == DEFAULT_TOOLCHAIN:
        raise RequestError(f"not a name; {NAME_FORM}; not {DEFAULT_TOOLCHAIN}", key="NAME", value=printable(name))
    if (root / OPTIONS / f"{name}.yaml").exists():
        raise RequestError(f"exists already; `qnnsweep toolchain remove {name}` removes it", key="NAME", value=name)
    with _one_line(root, wanted):
        remove_stale(root / _PARTIAL)
        folder = root / _PARTIAL / temporary_name()
        folder.mkdir(parents=True)
        try:
            installs = wanted.qnn is not None or wanted.executorch_release is not None
            least = _LEAST_FREE_BYTES if installs else _LEAST_FREE_BYTES_OF_LINKS
            if (free := shutil.disk_usage(folder).free) < least:
                raise RequestError(
                    f"{free >> 20} MiB free at {root}, but a toolchain needs {least >> 20}: free some "
                    "space, or set QNNSWEEP_TOOLCHAINS to a folder on another disk"
                )
            toolchain = _built(folder, name, wanted, environ)
            if is_probed:
                toolchain = _probed(toolchain, wanted, environ)
            (folder / RECORD).write_bytes(record_bytes(toolchain))
            return read_record(_publish(root, name, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def ensure(wanted: Wanted, environ: Mapping[str, str]) -> PreparedToolchain:
    """Return the prepared toolchain that has what is wanted, under its default name; if there is none, prepare it.

    Raises RequestError as `add` does, or if the toolchain of this name has something else.
    """
    root = toolchains_folder(environ)
    with _one_line(root, wanted):
        name = wanted.default_name
    if not (root / OPTIONS / f"{name}.yaml").exists():
        return add(name, wanted, environ)
    toolchain = read_record(folder_of(root, name))
    release = wanted.executorch_release
    sha = None if wanted.executorch is None or release else commit_sha(*split_commit(wanted.executorch))
    has_release = wanted.qnn not in RELEASES or toolchain.build.startswith(f"v{wanted.qnn}.")
    changes = (toolchain.release, toolchain.commit and toolchain.commit.rpartition("@")[2])
    switched_off = (toolchain.passes_off, toolchain.operators_skipped)
    if not has_release or (changes, switched_off) != ((release, sha), (wanted.passes_off, wanted.operators_skipped)):
        problem = f"has something else than its name says; `qnnsweep toolchain remove {name}` removes it"
        raise RequestError(problem, key="toolchain", value=name)
    return toolchain


def check(wanted: Wanted) -> None:
    """Check what can be known before anything is installed or copied: the release and the commit. Raises RequestError.

    The names of passes and operators are only known when ExecuTorch is imported.
    """
    if wanted.qnn is not None and not _is_path(wanted.qnn):
        _version(wanted.qnn)
    if wanted.executorch is not None and wanted.executorch_release is None:
        commit_sha(*split_commit(wanted.executorch))


def remove(name: str, environ: Mapping[str, str]) -> None:
    """Remove a prepared toolchain. Raises RequestError if there is none of this name."""
    root = toolchains_folder(environ)
    option, names = root / OPTIONS / f"{name}.yaml", [path.stem for path in (root / OPTIONS).glob("*.yaml")]
    if not is_toolchain_name(name) or name not in names:
        raise RequestError(f"no such toolchain; {one_of(names)}", key="NAME", value=printable(name))
    folder = folder_of(root, name)
    with in_use.exclusive(folder) as is_free:
        if not is_free:
            problem = "is used by a process that runs; try again when it has ended"
            raise RequestError(problem, key="NAME", value=name)
        option.unlink()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _one_line(root: Path, wanted: Wanted) -> Iterator[None]:
    """Turn an error of the file system, or of what this machine lacks, into a RequestError."""
    try:
        yield
    except EnvironmentUnusable as error:
        key, value = ("qnn", wanted.qnn) if wanted.qnn else ("executorch", wanted.executorch)
        raise RequestError(str(error), key=key, value=printable(value)) from error
    except OSError as error:
        remedy = "free some space there, make it writable, or set QNNSWEEP_TOOLCHAINS to another folder"
        raise RequestError(f"cannot write {error.filename or root}: {error.strerror}; {remedy}") from error


def _built(folder: Path, name: str, wanted: Wanted, environ: Mapping[str, str]) -> PreparedToolchain:
    """Put ExecuTorch's changes, and QNN's libraries or links to installed ones, into `folder`."""
    libraries = folder / SDK / LIBRARY_FOLDER
    libraries.mkdir(parents=True)
    changed = _changed(folder, name, wanted, environ)
    if wanted.passes_off or wanted.operators_skipped or changed.release is not None:
        _check_names(changed, wanted)
    qnn = wanted.qnn
    if qnn is None:
        origin = _link_default(folder, libraries, environ)
    elif _is_path(qnn):
        origin = _link_sdk(Path(qnn).expanduser().absolute(), libraries)
    else:
        origin = _install(_version(qnn), folder, environ)
        for library in sorted((folder / "package" / "onnxruntime_qnn").glob("*.so")):
            (libraries / library.name).symlink_to(os.path.relpath(library, libraries))
    paths = sorted(path for path in libraries.iterdir() if ".so" in path.name)
    paths += sorted((folder / "package" / "onnxruntime_qnn.libs").glob("*.so*"))
    build = build_id(folder / SDK)
    if qnn in RELEASES and not build.startswith(f"v{qnn}."):
        raise RequestError(f"{origin} has the QNN build {build}, which is another release", key="qnn", value=qnn)
    return replace(changed, origin=origin, build=build, files=tuple(_library_file(path, folder) for path in paths))


def _changed(folder: Path, name: str, wanted: Wanted, environ: Mapping[str, str]) -> PreparedToolchain:
    """Return the toolchain, still without QNN's libraries, with the wanted release or commit of ExecuTorch."""
    commit, release, own_files = None, wanted.executorch_release, list[Path]()
    if release is not None:
        own_files = install_release(release, folder, environ)
    elif wanted.executorch is not None:
        clone, short = split_commit(wanted.executorch)
        sha = commit_sha(clone, short)
        commit, own_files = f"{clone}@{sha}", lay_over(folder, commit_files(clone, sha))
    return PreparedToolchain(
        name=name,
        folder=folder,
        origin="",
        build="",
        executorch=release or metadata.version("executorch"),
        bridge=None,
        files=(),
        release=release,
        commit=commit,
        python_files=tuple(_library_file(path, folder) for path in own_files),
        passes_off=wanted.passes_off,
        operators_skipped=wanted.operators_skipped,
        unverified=tuple(_unverified(wanted)),
        probed=(),
    )


def _unverified(wanted: Wanted) -> Iterator[str]:
    """Yield what is wanted from sources of whose files no digest is known."""
    if wanted.qnn is not None and _is_path(wanted.qnn):
        yield wanted.qnn
    packages = [f"{PACKAGE}=={_version(wanted.qnn)}"] if wanted.qnn is not None and not _is_path(wanted.qnn) else []
    packages += [f"executorch=={wanted.executorch_release}"] if wanted.executorch_release else []
    yield from (package for package in packages if package not in DIGESTS)


def _check_names(toolchain: PreparedToolchain, wanted: Wanted) -> None:
    """Raise RequestError if ExecuTorch has no pass or operator of a wanted name."""
    try:
        passes, operators = names(toolchain.environment({}))
    except ProbeFailed as error:
        unmet = "" if toolchain.release is None else unmet_requirements(toolchain.folder)
        value = printable(wanted.executorch or "")
        raise ToolchainUnusable(
            f"cannot be imported: {printable(error.problem)}{unmet}", key="executorch", value=value
        ) from None
    kind = RequestError if wanted.executorch is None else ToolchainUnusable
    for key, chosen, known in (
        ("passes_off", wanted.passes_off, passes),
        ("operators_skipped", wanted.operators_skipped, operators),
    ):
        for name in chosen:
            if name not in known:
                raise kind(f"no such name; {one_of(known)}", key=key, value=printable(name))


def _link_default(folder: Path, libraries: Path, environ: Mapping[str, str]) -> str:
    """Fill the folder `libraries` with links to those of the default toolchain."""
    sdk = find_sdk(environ, folder / "default")
    for library in (sdk.root / LIBRARY_FOLDER).iterdir():
        (libraries / library.name).symlink_to(library.resolve())
    for runtime in sdk.runtime_libraries:
        (folder / "package").mkdir()
        (folder / "package" / runtime.name).symlink_to(runtime)
    return sdk.origin


def _is_path(qnn: str) -> bool:
    return "/" in qnn or qnn in (".", "..") or qnn.startswith("~")


def _version(qnn: str) -> str:
    """Return the version of the package that has the release. Raises RequestError."""
    named = re.fullmatch(rf"{PACKAGE}==([0-9][\w.]*)", qnn)
    if named is not None:
        return named[1]
    if qnn not in RELEASES:
        choices = f"{one_of(RELEASES)}, {PACKAGE}==VERSION, or the path of a Qualcomm AI Engine Direct SDK"
        raise RequestError(f"no such release; {choices}", key="qnn", value=printable(qnn))
    return RELEASES[qnn]


def _install(version: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Install QNN's package into `folder/package`."""
    requirement = f"{PACKAGE}=={version}"
    install(requirement, folder / "package", environ)
    if not (folder / "package" / "onnxruntime_qnn" / _HTP).is_file():
        raise RequestError(f"{requirement} has no {_HTP} for this machine")
    return f"{PACKAGE} {version}"


def _link_sdk(sdk: Path, libraries: Path) -> str:
    """Fill the folder `libraries` with links to those of the user's SDK, and link the SDK's other folders beside it."""
    originals = sdk / LIBRARY_FOLDER
    missing = [name for name in (_HTP, "libQnnSystem.so") if not (originals / name).is_file()]
    if missing:
        raise RequestError(f"no {', '.join(missing)} in {originals}", key="qnn", value=printable(sdk))
    top = libraries.parents[1]
    for entry in (*sdk.iterdir(), *(sdk / "lib").iterdir()):
        target = top / entry.relative_to(sdk)
        if not target.exists() and entry.name != "lib":
            target.symlink_to(entry)
    for library in originals.iterdir():
        (libraries / library.name).symlink_to(library)
    return str(sdk)


def _library_file(path: Path, folder: Path) -> LibraryFile:
    status = path.stat()
    return LibraryFile(
        path=str(path.relative_to(folder)), size=status.st_size, changed_ns=status.st_mtime_ns, sha256=file_sha256(path)
    )


def _probed(toolchain: PreparedToolchain, wanted: Wanted, environ: Mapping[str, str]) -> PreparedToolchain:
    """Probe the toolchain; if ExecuTorch cannot use it as it is, add the bridge and probe it again."""
    environment = toolchain.environment(environ)
    try:
        return replace(toolchain, probed=probe(environment))
    except ProbeFailed as error:
        without = error.problem
    if wanted.qnn is None:
        problem = f"ExecuTorch with {toolchain.changes} compiles no program: {printable(without)}"
        if toolchain.release is not None:
            problem += unmet_requirements(toolchain.folder)
        raise ToolchainUnusable(problem, key="executorch" if wanted.executorch else "passes_off")
    bridged = with_bridge(toolchain, environ)
    try:
        return replace(bridged, probed=probe(environment))
    except ProbeFailed as error:
        raise RequestError(
            f"ExecuTorch {toolchain.executorch} cannot use QNN {toolchain.build}: {printable(without)}; "
            f"with the bridge: {printable(error.problem)}"
        ) from None


def _publish(root: Path, name: str, folder: Path) -> Path:
    """Give a complete folder its place, whose name has the digest of its record, and write the option of its name.

    From now on the toolchain exists. A toolchain that exists is never replaced. Raises RequestError.
    """
    options, final = root / OPTIONS, root / FILES / f"{name}-{file_sha256(folder / RECORD)[:12]}"
    for parent in (options, final.parent):
        parent.mkdir(exist_ok=True)
    with in_use.exclusive(options, wait=True):
        if (options / f"{name}.yaml").exists():
            raise RequestError("was added by another process; use it, or choose another name", key="NAME", value=name)
        named = {folder_of(root, option.stem) for option in options.glob("*.yaml")}
        for left in set(final.parent.iterdir()) - named:  # of an `add` or a `remove` that was killed between two steps
            with in_use.exclusive(left) as is_free:
                if is_free:
                    shutil.rmtree(left)
        folder.rename(final)
        _write_option(root, name, final)
    return final


def _write_option(root: Path, name: str, folder: Path) -> None:
    """Write the option of the configuration group `toolchain`."""
    options = root / OPTIONS
    temporary = root / _PARTIAL / temporary_name()
    temporary.write_text(f"name: {name}\nfolder: '{str(folder).replace(chr(39), chr(39) * 2)}'\n")
    temporary.rename(options / f"{name}.yaml")
