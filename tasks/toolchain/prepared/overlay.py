"""A private copy of the installed ExecuTorch whose QNN backend has the Python files of a commit of the user's clone.

Only the folder of the QNN backend is a copy. All else are links to the installed package, which is never changed.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import util
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.tasks.errors import EnvironmentUnusable

PYTHON = "python"
"""The folder, in the folder of a toolchain, that contains the private copy."""
BACKEND = Path("backends", "qualcomm")
_SCHEMA = "serialization/qc_compiler_spec.fbs"
_DEADLINE_S = 120
_AS_STORED = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
"""With these variables, git shows the objects of a commit and no others, runs no transport and writes nothing."""


class ToolchainUnusable(RequestError):
    """What is wanted exists, but there can be no toolchain that has it, such as a commit that needs a build."""


def split_commit(executorch: str) -> tuple[Path, str]:
    """Return the clone and the commit of `CLONE@COMMIT`. Raises RequestError."""
    clone, _, commit = executorch.rpartition("@")
    if not clone or not commit or commit.startswith("-"):
        raise RequestError(
            "write executorch=1.4.1 for a release, or executorch=PATH@COMMIT with the path of a git clone",
            key="executorch",
            value=printable(executorch),
        )
    return Path(clone).expanduser().absolute(), commit


def commit_sha(clone: Path, commit: str) -> str:
    """Return the full name of a commit of a clone. Raises RequestError if there is no such clone or commit."""
    value = printable(f"{clone}@{commit}")
    if not clone.is_dir():
        raise RequestError("there is no such folder", key="executorch", value=value)
    git(clone, "rev-parse", "--git-dir")
    try:
        resolved = git(clone, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except RequestError:
        remedy = f"`git -C {printable(clone)} fetch` may bring it"
        raise RequestError(f"the clone has no such commit; {remedy}", key="executorch", value=value) from None
    return resolved.decode().strip()


def git(clone: Path, *words: str, given: bytes = b"") -> bytes:
    """Return what a git command prints. `given`: its input.

    Raises RequestError with git's own last line if the command fails.
    """
    program, value = shutil.which("git"), printable(clone)
    if program is None:
        raise EnvironmentUnusable("there is no git to read the clone with", remedy="install git")
    argv = [program, "-C", str(clone), *words]
    try:
        environment = os.environ | _AS_STORED
        ran = subprocess.run(argv, input=given, env=environment, capture_output=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise RequestError(f"git did not end within {_DEADLINE_S} s", key="executorch", value=value) from None
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        problem = printable(lines[-1] if lines else f"git ended with exit code {ran.returncode}")
        raise RequestError(problem, key="executorch", value=value)
    return ran.stdout


def commit_files(clone: Path, sha: str) -> dict[str, bytes]:
    """Map the path of each Python file of the QNN backend, relative to its folder, to its content at a commit.

    Raises ToolchainUnusable if the commit has no QNN backend, or another schema of the options that C++ code reads.
    """
    value = printable(f"{clone}@{sha}")
    # The bytes of a commit are those of its objects: `git archive` would run the clone's filters and change line ends.
    listed = git(clone, "ls-tree", "-r", "-z", "--full-tree", sha, f"{BACKEND}/").decode(errors="surrogateescape")
    blobs = [re.fullmatch(r"(100\d{3}) blob (\w+)\t(.+)", entry, re.DOTALL) for entry in listed.split("\0")]
    objects = {str(Path(blob[3]).relative_to(BACKEND)): blob[2] for blob in blobs if blob}
    if not objects:
        raise ToolchainUnusable(f"the commit has no folder {BACKEND}", key="executorch", value=value)
    contents = git(clone, "cat-file", "--batch", given="\n".join([*objects.values(), ""]).encode())
    files: dict[str, bytes] = {}
    for path in objects:
        head, _, contents = contents.partition(b"\n")
        if len(head.split()) != 3:
            raise RequestError(f"git cannot read {path}: {printable(head.decode())}", key="executorch", value=value)
        size = int(head.split()[2])
        files[path], contents = contents[:size], contents[size + 1 :]
    schema = installed_executorch() / BACKEND / _SCHEMA
    if files.get(_SCHEMA, b"").strip() != schema.read_bytes().strip():
        problem = f"{BACKEND / _SCHEMA} differs from that of the installed release, whose C++ code reads it"
        raise ToolchainUnusable(f"{problem}: such a commit needs a build", key="executorch", value=value)
    return {path: content for path, content in files.items() if path.endswith(".py")}


def lay_over(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Create the private copy in `folder`. Return its Python files, which are those of `files`."""
    installed, copy = installed_executorch(), folder / PYTHON / "executorch"
    (copy / BACKEND).mkdir(parents=True)
    # The installed package may have no __init__.py. With one, this folder alone is the package.
    if not (installed / "__init__.py").exists():
        (copy / "__init__.py").touch()
    for source, target, private in (
        (installed, copy, BACKEND.parts[0]),
        (installed / BACKEND.parts[0], copy / BACKEND.parts[0], BACKEND.parts[1]),
    ):
        for entry in source.iterdir():
            if entry.name not in (private, "__pycache__"):
                (target / entry.name).symlink_to(entry)
    for place, _, names in os.walk(installed / BACKEND):
        relative = Path(place).relative_to(installed)
        if relative.name == "__pycache__":
            continue
        (copy / relative).mkdir(exist_ok=True)
        for name in names:
            if not name.endswith(".py"):
                (copy / relative / name).symlink_to(Path(place, name))
    for path, content in files.items():
        target = copy / BACKEND / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return sorted(copy / BACKEND / path for path in files)


def installed_executorch() -> Path:
    """Return the folder of the installed ExecuTorch. Raises EnvironmentUnusable if there is none."""
    package = util.find_spec("executorch")
    if package is None or not package.submodule_search_locations:
        raise EnvironmentUnusable("ExecuTorch is not installed", remedy="run `pip install executorch`")
    return Path(next(iter(package.submodule_search_locations))).absolute()
