"""Where QNN comes from: the user's own SDK first, else the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnxruntime_qnn
import pytest
from executorch import version

from qnnsweep.tasks.errors import EnvironmentUnusable
from qnnsweep.tasks.records import Toolchain
from qnnsweep.tasks.toolchain.backends.qnn.sdk import LIBRARY_FOLDER, Sdk, find_sdk, identity

PACKAGE = Path(str(onnxruntime_qnn.__file__)).parent
VERSION = metadata.version("onnxruntime-qnn")


def own_sdk(root: Path, build: bytes = b"\0AISW_VERSION v2.31.0.250130151446_114721\0") -> Path:
    """Create a folder with the layout of Qualcomm's SDK, whose HTP library contains `build`."""
    folder = root / LIBRARY_FOLDER
    folder.mkdir(parents=True)
    (folder / "libQnnHtp.so").write_bytes(build)
    (folder / "libQnnSystem.so").touch()
    return root


def test_the_users_own_sdk_wins_over_the_wheel(tmp_path: Path) -> None:
    root = own_sdk(tmp_path / "sdk with a space")
    sdk = find_sdk({"QNN_SDK_ROOT": str(root)}, tmp_path)
    assert sdk == Sdk(root=root, build="v2.31.0.250130151446", origin="QNN_SDK_ROOT", runtime_libraries=())
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize(
    ("present", "missing"), [((), "libQnnHtp.so, libQnnSystem.so"), (("libQnnHtp.so",), "libQnnSystem.so")]
)
def test_an_sdk_without_the_htp_libraries_is_refused_by_name_with_what_to_do(
    present: tuple[str, ...], missing: str, tmp_path: Path
) -> None:
    root = tmp_path / "sdk"
    (root / LIBRARY_FOLDER).mkdir(parents=True)
    for name in present:
        (root / LIBRARY_FOLDER / name).touch()
    with pytest.raises(EnvironmentUnusable) as raised:
        find_sdk({"QNN_SDK_ROOT": str(root)}, tmp_path)
    assert str(raised.value) == (
        f"QNN_SDK_ROOT={root}: no {missing} in {root / LIBRARY_FOLDER}; "
        "point it at an unpacked Qualcomm AI Engine Direct SDK, or unset it to use the onnxruntime-qnn wheel"
    )


def test_a_library_that_carries_no_build_id_is_refused(tmp_path: Path) -> None:
    root = own_sdk(tmp_path / "sdk", build=b"\x7fELF version 2.31")
    with pytest.raises(EnvironmentUnusable, match=r"libQnnHtp\.so carries no QNN build id"):
        find_sdk({"QNN_SDK_ROOT": str(root)}, tmp_path)


@pytest.mark.parametrize("environ", [{}, {"QNN_SDK_ROOT": ""}])
def test_without_one_the_wheel_is_linked_into_the_shape_of_an_sdk(environ: dict[str, str], tmp_path: Path) -> None:
    sdk = find_sdk(environ, tmp_path)
    assert sdk == Sdk(
        root=tmp_path / f"qnn-{VERSION}",
        build=sdk.build,
        origin=f"onnxruntime-qnn {VERSION}",
        runtime_libraries=(PACKAGE.parent / "onnxruntime_qnn.libs",),
    )
    links = {link.name: link.readlink() for link in (sdk.root / LIBRARY_FOLDER).iterdir()}
    assert links == {library.name: library for library in PACKAGE.glob("*.so")}
    assert {"libQnnHtp.so", "libQnnSystem.so", "libHtpPrepare.so"} <= set(links)
    assert all(folder.is_dir() for folder in sdk.runtime_libraries)


def test_by_default_the_links_are_among_the_caches_of_the_user_and_not_in_a_store(tmp_path: Path) -> None:
    sdk = find_sdk({"XDG_CACHE_HOME": str(tmp_path)})
    assert sdk.root.parent.parent == tmp_path / "qnnsweep" / "libraries"
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EnvironmentUnusable, match="set XDG_CACHE_HOME to a folder that you can write to"):
        find_sdk({"XDG_CACHE_HOME": str(file)})


def test_the_build_id_is_the_one_qualcomm_compiled_in(tmp_path: Path) -> None:
    build = find_sdk({}, tmp_path).build
    assert build.startswith("v2.49.40.")
    assert build.encode() in (PACKAGE / "libQnnHtp.so").read_bytes()


def test_a_link_to_a_wheel_that_has_moved_is_replaced_and_a_good_one_stays(tmp_path: Path) -> None:
    folder = find_sdk({}, tmp_path).root / LIBRARY_FOLDER
    inode = (folder / "libQnnSystem.so").lstat().st_ino
    (folder / "libQnnHtp.so").unlink()
    (folder / "libQnnHtp.so").symlink_to("/an/older/environment/libQnnHtp.so")
    find_sdk({}, tmp_path)
    assert (folder / "libQnnHtp.so").readlink() == PACKAGE / "libQnnHtp.so"
    assert (folder / "libQnnSystem.so").lstat().st_ino == inode
    assert all(link.is_symlink() for link in folder.iterdir())


@pytest.mark.parametrize(
    ("inherited", "expected"), [({}, "{folders}"), ({"LD_LIBRARY_PATH": "/mine"}, "{folders}:/mine")]
)
def test_a_process_gets_the_sdk_and_its_libraries_ahead_of_what_it_inherits(
    inherited: dict[str, str], expected: str, tmp_path: Path
) -> None:
    sdk = Sdk(root=tmp_path, build="v1", origin="", runtime_libraries=(Path("/wheel/libs"),))
    folders = f"{tmp_path / LIBRARY_FOLDER}:/wheel/libs"
    assert sdk.environment(inherited) == {
        "QNN_SDK_ROOT": str(tmp_path),
        "LD_LIBRARY_PATH": expected.format(folders=folders),
    }


def test_the_identity_is_what_is_installed_and_asking_imports_none_of_it(tmp_path: Path) -> None:
    sdk = find_sdk({}, tmp_path)
    assert identity(sdk) == Toolchain(
        python=sys.version.split()[0],
        torch=metadata.version("torch"),
        executorch=metadata.version("executorch"),
        torchao=metadata.version("torchao"),
        qnn=sdk.build,
        executorch_commit=version.git_version,
    )
    assert len(version.git_version or "") == 40
    script = (
        "import sys; from pathlib import Path;"
        "from qnnsweep.tasks.toolchain.backends.qnn.sdk import find_sdk, identity;"
        "identity(find_sdk({}, Path(sys.argv[1])));"
        "sys.exit(str({'torch', 'torchao', 'executorch', 'onnxruntime_qnn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"


def test_a_process_with_that_environment_can_load_the_htp_library(tmp_path: Path) -> None:
    sdk = find_sdk({}, tmp_path)
    environment = {"PATH": os.environ["PATH"]} | sdk.environment({})
    script = "import ctypes; ctypes.CDLL('libQnnHtp.so').QnnInterface_getProviders; print('loaded')"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[:1], done.stderr) == (["loaded"], "")
