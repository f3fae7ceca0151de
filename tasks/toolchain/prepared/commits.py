"""The commits of a clone of ExecuTorch that changed the QNN backend, between a good and a bad commit."""

from dataclasses import dataclass
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.tasks.toolchain.prepared.overlay import BACKEND, commit_sha, git, split_commit

BETWEEN = ".."
_RECORD, _FIELD = "\x1e", "\x1f"


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit of a clone, with the first line of its message and the files of the QNN backend that it changed."""

    clone: Path
    sha: str
    subject: str
    files: tuple[str, ...] = ()


def is_range(executorch: str) -> bool:
    """Return whether the value of the key `executorch` is `CLONE@GOOD..BAD`."""
    return BETWEEN in executorch.rpartition("@")[2]


def commits(executorch: str) -> list[Commit]:
    """Return the good commit of `CLONE@GOOD..BAD`, then the commits up to the bad one that changed the QNN backend.

    Of a merge, only the first parent is followed. If the bad commit did not change the QNN backend, the list ends with
    the last commit that did. Raises RequestError if there is no such clone or commit, or no commit to examine.
    """
    clone, ends = split_commit(executorch)
    first, _, last = ends.partition(BETWEEN)
    if not first or not last or last.startswith(".") or BETWEEN in last:
        problem = "write executorch=CLONE@GOOD..BAD, with two commits"
        raise RequestError(problem, key="executorch", value=printable(executorch))
    good, bad = commit_sha(clone, first), commit_sha(clone, last)
    if _common_ancestor(clone, good, bad) != good:
        problem = f"{printable(first)} is no ancestor of {printable(last)}: the commits between them have no order"
        raise RequestError(problem, key="executorch", value=printable(executorch))
    form = f"--format={_RECORD}%H{_FIELD}%s{_FIELD}"
    options = ("--first-parent", "--reverse", "--name-only", "-m", "--no-show-signature", form, f"--relative={BACKEND}")
    log = git(clone, "log", *options, f"{good}{BETWEEN}{bad}", "--", str(BACKEND)).decode(errors="replace")
    changed = [_commit(clone, record) for record in log.split(_RECORD)[1:]]
    if not changed:
        problem = f"no commit between them changed {BACKEND}"
        raise RequestError(problem, key="executorch", value=printable(executorch))
    subject = git(clone, "log", "-1", "--format=%s", good).decode(errors="replace").strip()
    return [Commit(clone=clone, sha=good, subject=subject), *changed]


def _common_ancestor(clone: Path, first: str, second: str) -> str | None:
    try:
        return git(clone, "merge-base", first, second).decode().strip()
    except RequestError:  # they have none
        return None


def _commit(clone: Path, record: str) -> Commit:
    sha, subject, files = record.split(_FIELD)
    return Commit(clone=clone, sha=sha, subject=subject, files=tuple(filter(None, files.split("\n"))))
