"""A toolchain with another release of ExecuTorch: the installed files, packed as a release that pip installs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.toolchain.prepared import prepare
from qnnsweep.tasks.toolchain.prepared.overlay import installed_executorch
from qnnsweep.tasks.toolchain.prepared.record import PreparedToolchain, prepared_toolchains
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted, parsed_words

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

RELEASE, BROKEN = "99.1", "99.2"
COMMIT = "0123456789abcdef" * 2 + "01234567"
NOT_IMPORTED = {"__pycache__", "data", "examples", "include"}


def pack(folder: Path, version: str, files: dict[str, bytes], *requires: str) -> None:
    """Write the package `executorch` of a version, with these files."""
    about = f"executorch-{version}.dist-info"
    metadata = "\n".join(["Metadata-Version: 2.1", "Name: executorch", f"Version: {version}", *requires, ""])
    files = files | {
        f"{about}/METADATA": metadata.encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"executorch-{version}-py3-none-any.whl", "w") as package:
        for name, content in {**files, f"{about}/RECORD": record.encode()}.items():
            package.writestr(name, content)


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which pip finds the two releases, and nothing else."""
    wheels, installed = tmp_path_factory.mktemp("wheels"), installed_executorch()
    files = {
        f"executorch/{path.relative_to(installed)}": path.read_bytes()
        for path in installed.rglob("*")
        if path.is_file() and not NOT_IMPORTED & set(path.relative_to(installed).parts)
    }
    version = f"from typing import Optional\n__version__ = '99.1'\ngit_version: Optional[str] = '{COMMIT}'\n".encode()
    pack(wheels, RELEASE, files | {"executorch/version.py": version}, "Requires-Dist: torch>=2")
    pack(wheels, BROKEN, {"executorch/version.py": version}, "Requires-Dist: torch<2", "Requires-Dist: numpy<1")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    return dict(os.environ) | offline | {"QNNSWEEP_TOOLCHAINS": str(tmp_path_factory.mktemp("toolchains"))}


@pytest.fixture(scope="module")
def toolchain(environ: dict[str, str]) -> PreparedToolchain:
    name, wanted = parsed_words([f"executorch={RELEASE}"])
    return prepare.add(name, wanted, environ, is_probed=False)


def test_a_process_of_the_toolchain_imports_the_release_and_this_environment_does_not(
    toolchain: PreparedToolchain,
) -> None:
    lines = (
        "import json; from executorch import exir, version; from importlib import metadata\n"
        "print(json.dumps([exir.__file__, version.__version__, metadata.version('executorch')]))"
    )
    environment = dict(os.environ) | toolchain.environment(os.environ) | {"PYTHONSAFEPATH": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", lines], env=environment, capture_output=True, text=True, check=True, cwd="/"
    )
    file = toolchain.folder / "python" / "executorch" / "exir" / "__init__.py"
    assert json.loads(ran.stdout.splitlines()[-1]) == [str(file), RELEASE, RELEASE]
    assert "99.1" not in (installed_executorch() / "version.py").read_text()


def test_the_identity_has_the_release_and_the_digest_of_its_files(toolchain: PreparedToolchain) -> None:
    identity = toolchain.identity
    assert (toolchain.name, toolchain.changes, toolchain.bridge) == ("executorch-99.1", "release 99.1", None)
    assert (identity.executorch, toolchain.executorch) == (RELEASE, RELEASE)
    assert identity.executorch_files is not None
    assert identity.executorch_commit == COMMIT
    recorded = {Path(file.path).name for file in toolchain.python_files}
    assert {"version.py", "libexecutorch_backend_qnn.so", "qc_compiler_spec.fbs"} <= recorded
    toolchain.check_files(read_all=True)


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (
            BROKEN,
            (
                "executorch=99.2: cannot be imported: ModuleNotFoundError: No module named 'executorch.backends'; it "
                "requires torch<2 (TORCH is installed)"
            ),
        ),
        (
            "99.3",
            (
                "pip cannot install executorch==99.3: No matching distribution found for executorch==99.3; check pip's "
                "index with `pip config list`"
            ),
        ),
    ],
)
def test_a_release_that_cannot_be_used_is_one_line(environ: dict[str, str], release: str, message: str) -> None:
    import torch

    before = list(prepared_toolchains(environ))
    with pytest.raises(RequestError) as caught:
        prepare.add(None, Wanted(executorch=release), environ)
    assert str(caught.value) == message.replace("TORCH", torch.__version__)
    assert list(prepared_toolchains(environ)) == before
    assert not any(Path(environ["QNNSWEEP_TOOLCHAINS"], "partial").iterdir())
