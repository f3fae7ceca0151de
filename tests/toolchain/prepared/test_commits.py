"""The commits between a good and a bad one that changed the QNN backend, in a clone with a merge."""

from __future__ import annotations

import pytest

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.toolchain.prepared.commits import commits, is_range
from tests.toolchain.prepared.small_clone import SmallClone


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> SmallClone:
    """Commits 0 to 3: a first, one beside the backend, one of the backend, and the merge of a branch with two."""
    clone = SmallClone(tmp_path_factory.mktemp("clone"))
    clone.commit("first")
    clone.commit("beside the backend", "README.md")
    clone.commit("the backend")
    clone.git("checkout", "--quiet", "-b", "side")
    for name in ("one", "two"):
        clone.commit(f"side {name}", f"backends/qualcomm/builders/{name}.py")
    clone.git("checkout", "--quiet", "main")
    clone.git("merge", "--quiet", "--no-ff", "--message", "merge of side", "side")
    clone.commits[3:] = [clone.git("rev-parse", "HEAD")]
    clone.git("checkout", "--quiet", "--orphan", "unrelated")
    clone.commit("another history")
    return clone


def test_only_commits_of_the_first_parent_that_changed_the_backend_are_listed(clone: SmallClone) -> None:
    listed = commits(f"{clone.folder}@{clone.commits[0]}..main")
    assert [(commit.sha, commit.subject, commit.files) for commit in listed] == [
        (clone.commits[0], "first", ()),
        (clone.commits[2], "the backend", ("a.py",)),
        (clone.commits[3], "merge of side", ("builders/one.py", "builders/two.py")),
    ]
    assert {commit.clone for commit in listed} == {clone.folder}


def test_only_two_commits_after_the_last_at_sign_are_a_range() -> None:
    assert is_range("../clone@a..b")
    assert not is_range("../clone@a")


@pytest.mark.parametrize(
    ("between", "problem"),
    [
        ("main..main", "no commit between them changed backends/qualcomm"),
        ("main..main~1", "main is no ancestor of main~1: the commits between them have no order"),
        ("unrelated..main", "unrelated is no ancestor of main: the commits between them have no order"),
        ("main...unrelated", "write executorch=CLONE@GOOD..BAD, with two commits"),
        ("main..", "write executorch=CLONE@GOOD..BAD, with two commits"),
    ],
)
def test_a_wrong_range_is_one_line(clone: SmallClone, between: str, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        commits(f"{clone.folder}@{between}")
    assert str(caught.value) == f"executorch={clone.folder}@{between}: {problem}"


def test_a_commit_that_the_clone_lacks_is_named(clone: SmallClone) -> None:
    with pytest.raises(RequestError) as caught:
        commits(f"{clone.folder}@absent..main")
    assert str(caught.value) == (
        f"executorch={clone.folder}@absent: the clone has no such commit; `git -C {clone.folder} fetch` may bring it"
    )
