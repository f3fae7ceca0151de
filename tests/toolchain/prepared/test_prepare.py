"""The preparation of a toolchain from an SDK of the user, with the real compiler; and every error as one line."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.storage.atomic import temporary_name
from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER, build_id
from qnnsweep.tasks.toolchain.prepared import prepare
from qnnsweep.tasks.toolchain.prepared.answer import ProbeFailed
from qnnsweep.tasks.toolchain.prepared.bridge import BRIDGE, with_bridge
from qnnsweep.tasks.toolchain.prepared.probe import probe
from qnnsweep.tasks.toolchain.prepared.record import PreparedToolchain, prepared_toolchains, read_record
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

SETTINGS = {
    "SM8650": {"SoC": "SM8650", "arch": "v75", "VTCM": "8 MiB"},
    "SA8797": {"SoC": "SA8797", "arch": "v81", "VTCM": "16 MiB"},
}
COMMON = {"optimization level": "3", "precision": "float16", "outputs": "an SNR above 40 dB"}


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory, user_sdk: tuple[Path, dict[str, str]]) -> dict[str, str]:
    return user_sdk[1] | {"QNNSWEEP_TOOLCHAINS": str(tmp_path_factory.mktemp("toolchains"))}


@pytest.fixture(scope="module")
def toolchain(environ: dict[str, str], user_sdk: tuple[Path, dict[str, str]]) -> PreparedToolchain:
    """The toolchain `mine`, prepared beside what an `add` that was killed has left."""
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = Path(environ["QNNSWEEP_TOOLCHAINS"], "partial", temporary_name().replace(f"-{os.getpid()}-", "-{}-"))
    left = left.with_name(left.name.format(int(process.stdout)))
    left.mkdir(parents=True)
    prepared = prepare.add("mine", Wanted(qnn=str(user_sdk[0])), environ)
    assert not any(left.parent.iterdir())
    return prepared


def test_every_setting_arrives_in_the_program_of_a_prepared_toolchain(
    toolchain: PreparedToolchain, user_sdk: tuple[Path, dict[str, str]]
) -> None:
    root = user_sdk[0]
    assert (toolchain.name, toolchain.origin, toolchain.bridge) == ("mine", str(root), None)
    assert toolchain.build == build_id(root)
    expected = {soc: settings | COMMON for soc, settings in SETTINGS.items()}
    assert {soc: {row.name: row.got for row in toolchain.probed if row.soc == soc} for soc in SETTINGS} == expected
    assert toolchain.provisional is None
    assert {path.name for path in (toolchain.sdk.root / "lib").iterdir()} == {"aarch64-android", "x86_64-linux-clang"}


def test_the_record_has_the_digest_of_every_library(
    toolchain: PreparedToolchain, user_sdk: tuple[Path, dict[str, str]]
) -> None:
    libraries = {path.name: path for path in (user_sdk[0] / LIBRARY_FOLDER).iterdir()}
    digests = {Path(file.path).name: file.sha256 for file in toolchain.files}
    assert digests == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in libraries.items()}
    assert read_record(toolchain.folder) == toolchain
    toolchain.check_files(read_all=True)


def test_the_bridge_changes_neither_a_file_of_qualcomms_nor_a_program(
    toolchain: PreparedToolchain, environ: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "bridged"
    shutil.copytree(toolchain.folder, folder, symlinks=True)
    bridged = with_bridge(read_record(folder), environ)
    assert bridged.bridge == BRIDGE
    assert sorted(file.sha256 for file in bridged.files) == sorted(file.sha256 for file in toolchain.files)
    bridged.check_files(read_all=True)
    assert not (bridged.sdk.root / LIBRARY_FOLDER / "libQnnHtp.so").is_symlink()
    assert probe(bridged.sdk.environment(environ)) == toolchain.probed


def test_a_library_that_has_changed_is_named(toolchain: PreparedToolchain, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(toolchain.folder, folder, symlinks=True)
    system = folder / "sdk" / LIBRARY_FOLDER / "libQnnSystem.so"
    system.unlink()
    system.write_bytes(b"another library")
    with pytest.raises(EnvironmentUnusable) as caught:
        read_record(folder).check_files()
    assert str(caught.value) == (
        f"toolchain mine: {system} has another content than when it was added; "
        "run `qnnsweep toolchain remove mine`, then `qnnsweep toolchain add` again"
    )


def test_a_release_that_executorch_cannot_use_is_refused_in_the_words_of_qnn(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(ProbeFailed) as caught:
        probe({"QNN_SDK_ROOT": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path / "lib")})
    assert "libQnnHtp.so" in caught.value.problem


@pytest.mark.parametrize(
    ("name", "qnn", "message"),
    [
        (
            "new",
            "2.46",
            (
                "qnn=2.46: no such release; one of 2.47, 2.48, 2.49, 2.50, 2.51, onnxruntime-qnn==VERSION, or the path "
                "of a Qualcomm AI Engine Direct SDK"
            ),
        ),
        (
            "new",
            "/nonexistent",
            "qnn=/nonexistent: no libQnnHtp.so, libQnnSystem.so in /nonexistent/lib/x86_64-linux-clang",
        ),
        ("mine", "2.51", "NAME=mine: exists already; `qnnsweep toolchain remove mine` removes it"),
        (
            "default",
            "2.51",
            (
                "NAME=default: not a name; letters, digits and . _ -, at most 60, the first a letter or a digit; not "
                "default"
            ),
        ),
    ],
)
def test_a_wrong_request_is_one_line(
    toolchain: PreparedToolchain, environ: dict[str, str], name: str, qnn: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        prepare.add(name, Wanted(qnn=qnn), environ)
    assert str(caught.value) == message
    assert [entry.name for entry in prepared_toolchains(environ)] == ["mine"]  # type: ignore[union-attr]


def test_a_package_that_is_not_on_the_index_is_one_line(environ: dict[str, str], tmp_path: Path) -> None:
    offline = environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    with pytest.raises(RequestError) as caught:
        prepare.add("new", Wanted(qnn="2.50"), offline)
    assert str(caught.value) == (
        "pip cannot install onnxruntime-qnn==2.6.0: No matching distribution found for onnxruntime-qnn==2.6.0; "
        "check pip's index with `pip config list`"
    )
    assert not any(Path(environ["QNNSWEEP_TOOLCHAINS"], "partial").iterdir())


def test_a_disk_that_is_nearly_full_is_one_line(
    environ: dict[str, str], user_sdk: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    with pytest.raises(RequestError) as caught:
        prepare.add("new", Wanted(qnn=str(user_sdk[0])), environ)
    assert str(caught.value) == (
        f"3 MiB free at {environ['QNNSWEEP_TOOLCHAINS']}, but a toolchain needs 1024: free some space, or set "
        "QNNSWEEP_TOOLCHAINS to a folder on another disk"
    )


def test_a_folder_that_is_not_writable_is_one_line(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError) as caught:
        prepare.add("new", Wanted(qnn="2.50"), environ | {"QNNSWEEP_TOOLCHAINS": str(tmp_path / "file")})
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'file' / 'partial'}: Not a directory; free some space there, make it writable, or "
        "set QNNSWEEP_TOOLCHAINS to another folder"
    )


def test_a_removed_toolchain_leaves_nothing(environ: dict[str, str], user_sdk: tuple[Path, dict[str, str]]) -> None:
    prepare.add("short", Wanted(qnn=str(user_sdk[0])), environ)
    prepare.remove("short", environ)
    assert [path.name for path in Path(environ["QNNSWEEP_TOOLCHAINS"]).rglob("*short*")] == []
    with pytest.raises(RequestError) as caught:
        prepare.remove("short", environ)
    assert str(caught.value) == "NAME=short: no such toolchain; one of mine"
