"""Toolchains that are added, used and removed at the same time, and packages with another content than PyPI's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.toolchain.prepared import prepare
from qnnsweep.tasks.toolchain.prepared.packages import DIGESTS, install
from qnnsweep.tasks.toolchain.prepared.record import folder_of, prepared_toolchains
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return dict(os.environ) | {"QNNSWEEP_TOOLCHAINS": str(tmp_path / "toolchains")}


@pytest.fixture
def root(environ: dict[str, str]) -> Path:
    return Path(environ["QNNSWEEP_TOOLCHAINS"])


def added(user_sdk: tuple[Path, dict[str, str]], environ: dict[str, str]) -> str:
    try:
        return str(prepare.add("mine", Wanted(qnn=str(user_sdk[0])), environ, is_probed=False).folder)
    except RequestError as error:
        return str(error)


def test_of_two_that_add_one_name_one_says_so_and_nothing_is_replaced(
    user_sdk: tuple[Path, dict[str, str]], environ: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, answers = threading.Barrier(2), []
    monkeypatch.setattr(prepare, "_publish", lambda *words, publish=prepare._publish: (both.wait(), publish(*words))[1])
    threads = [threading.Thread(target=lambda: answers.append(added(user_sdk, environ))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusal = "NAME=mine: was added by another process; use it, or choose another name"
    assert {*answers} == {refusal, str(folder_of(root, "mine"))}
    assert len([*prepared_toolchains(environ)]) == 1
    assert [*(root / "files").iterdir()] == [folder_of(root, "mine")]
    assert not any((root / "partial").iterdir())


def test_a_toolchain_that_is_used_is_not_removed(
    user_sdk: tuple[Path, dict[str, str]], environ: dict[str, str], root: Path
) -> None:
    added(user_sdk, environ)
    folder = folder_of(root, "mine")
    lines = f"""
import os, sys
from qnnsweep.conf.toolchains import ToolchainConfig
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
toolchain_of(ToolchainConfig(name="mine", folder={str(folder)!r}))
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"held\n"
        with pytest.raises(RequestError, match="NAME=mine: is used by a process that runs"):
            prepare.remove("mine", environ)
        assert folder.is_dir()
        user.kill()
    prepare.remove("mine", environ)
    assert ([*prepared_toolchains(environ)], folder.exists()) == ([], False)


def test_what_a_killed_process_left_is_removed_by_the_next_one(
    user_sdk: tuple[Path, dict[str, str]], environ: dict[str, str], root: Path
) -> None:
    added(user_sdk, environ)
    (root / "toolchain" / "mine.yaml").unlink()
    added(user_sdk, environ)
    assert [*(root / "files").iterdir()] == [folder_of(root, "mine")]


@pytest.mark.parametrize("requirement", ["onnxruntime-qnn==2.7.0", "executorch==1.4.1"])
def test_a_package_with_another_content_than_on_pypi_is_not_installed(tmp_path: Path, requirement: str) -> None:
    name, _, version = requirement.partition("==")
    name = name.replace("-", "_")
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(tmp_path / f"{name}-{version}-py3-none-any.whl", "w") as package:
        package.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        package.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        package.writestr(f"{about}/RECORD", "")
    mirror = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    with pytest.raises(RequestError) as raised:
        install(requirement, tmp_path / "target", dict(os.environ) | mirror)
    reason = "the index that pip uses has another file than PyPI, so nothing of it was installed; use another index"
    assert str(raised.value) == f"pip cannot install {requirement}: {reason}"
    assert not (tmp_path / "target").exists()


def test_every_release_by_name_has_digests() -> None:
    assert {f"{prepare.PACKAGE}=={version}" for version in prepare.RELEASES.values()} <= {*DIGESTS}
    assert all(len(digest) == 64 for digests in DIGESTS.values() for digest in digests)
