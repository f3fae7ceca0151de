"""A toolchain with the QNN backend of another commit of ExecuTorch, and with passes and operators switched off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnsweep.conf.errors import printable
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.toolchain.prepared import prepare
from qnnsweep.tasks.toolchain.prepared.overlay import BACKEND, ToolchainUnusable, installed_executorch
from qnnsweep.tasks.toolchain.prepared.record import PreparedToolchain, prepared_toolchains, read_record
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted, parsed_words
from tests.toolchain.prepared.executorch_clone import Clone

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

CONSTANTS = "utils/constants.py"
SCHEMA = "serialization/qc_compiler_spec.fbs"
MARK = ('QCOM_PASS_ACTIVATE_KEY = "', 'MARK = "the commit"\nQCOM_PASS_ACTIVATE_KEY = "')


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(os.environ) | {"QNNSWEEP_TOOLCHAINS": str(tmp_path_factory.mktemp("toolchains"))}


@pytest.fixture(scope="module")
def marked(clone: Clone, environ: dict[str, str]) -> tuple[PreparedToolchain, str]:
    """The toolchain of a commit that adds a constant, and the name of the commit. `add` probes it."""
    sha = clone.commit("a constant", constants=(CONSTANTS, *MARK))
    return prepare.add(None, Wanted(executorch=f"{clone.folder}@{sha}"), environ), sha


def in_environment(toolchain: PreparedToolchain, lines: str) -> dict[str, object]:
    environment = dict(os.environ) | toolchain.environment(os.environ) | {"PYTHONSAFEPATH": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", lines], env=environment, capture_output=True, text=True, check=False, cwd="/"
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_process_of_the_toolchain_imports_the_commit_and_this_environment_does_not(
    marked: tuple[PreparedToolchain, str], clone: Clone
) -> None:
    toolchain, sha = marked
    assert (toolchain.name, toolchain.commit) == (f"executorch-{sha[:12]}", f"{clone.folder}@{sha}")
    assert toolchain.provisional is None
    assert {row.got for row in toolchain.probed if row.name == "outputs"} == {"an SNR above 40 dB"}
    imported = in_environment(
        toolchain,
        "import json, executorch.exir\n"
        "from executorch.backends.qualcomm.utils import constants\n"
        "print(json.dumps({'mark': constants.MARK, 'file': constants.__file__}))",
    )
    file = toolchain.folder / "python" / "executorch" / BACKEND / CONSTANTS
    assert imported == {"mark": "the commit", "file": str(file)}
    assert "MARK" not in (installed_executorch() / BACKEND / CONSTANTS).read_text()


def test_a_prepared_toolchain_is_used_again_unless_it_has_something_else_than_its_name_says(
    marked: tuple[PreparedToolchain, str], clone: Clone, environ: dict[str, str]
) -> None:
    toolchain, sha = marked
    assert prepare.ensure(Wanted(executorch=f"{clone.folder}@{sha}"), environ) == toolchain
    name = f"executorch-{clone.first[:12]}"
    prepare.add(name, Wanted(executorch=f"{clone.folder}@{sha}"), environ, is_probed=False)
    with pytest.raises(RequestError) as caught:
        prepare.ensure(Wanted(executorch=f"{clone.folder}@{clone.first}"), environ)
    assert str(caught.value) == (
        f"toolchain={name}: has something else than its name says; `qnnsweep toolchain remove {name}` removes it"
    )


def test_default_names_of_many_passes_are_short_and_differ() -> None:
    many = [f"DecomposeSomething{number}" for number in range(20)]
    names = {Wanted(passes_off=tuple(many[:count])).default_name for count in range(10, 20)}
    assert len(names) == 10
    assert {len(name) for name in names} == {60}


def test_the_identity_has_the_digest_of_the_python_files(
    marked: tuple[PreparedToolchain, str], clone: Clone, environ: dict[str, str]
) -> None:
    toolchain, _ = marked
    first = prepare.add("first", Wanted(executorch=f"{clone.folder}@{clone.first}"), environ, is_probed=False)
    again = prepare.add("again", Wanted(executorch=f"{clone.folder}@{clone.first}"), environ, is_probed=False)
    assert first.identity == again.identity != toolchain.identity
    assert first.identity.qnn_files == toolchain.identity.qnn_files
    assert first.provisional == "not probed"


def test_a_python_file_that_has_changed_is_named(marked: tuple[PreparedToolchain, str], tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(marked[0].folder, folder, symlinks=True)
    file = folder / "python" / "executorch" / BACKEND / CONSTANTS
    file.write_text(file.read_text() + "\n")
    with pytest.raises(EnvironmentUnusable, match="has another content than when it was added"):
        read_record(folder).check_files()


def test_the_passes_and_operators_of_the_words_are_switched_off(environ: dict[str, str]) -> None:
    name, wanted = parsed_words(["off", "passes_off=[DecomposeSilu,FoldQDQ]", "operators_skipped=aten.relu.default"])
    assert name == "off"
    toolchain = prepare.add(name, wanted, environ, is_probed=False)
    assert (toolchain.identity.passes_off, toolchain.identity.operators_skipped) == (
        "DecomposeSilu,FoldQDQ",
        "aten.relu.default",
    )
    active = in_environment(
        toolchain,
        "import json\n"
        "from qnnsweep.tasks.toolchain.backends.qnn.switched_off import pass_manager, skipped_operators\n"
        "from executorch.backends.qualcomm.utils.constants import QCOM_PASS_ACTIVATE_KEY as KEY\n"
        "manager = pass_manager()\n"
        "captured = manager.get_capture_program_passes().items()\n"
        "print(json.dumps({\n"
        "    'annotation': [each.__name__ for each in pass_manager().get_annotation_passes()],\n"
        "    'preprocess': [each.__name__ for each in manager.get_preprocess_passes()],\n"
        "    'captured': [each.__name__ for each, job in captured if job[KEY]],\n"
        "    'skipped': sorted(skipped_operators())}))",
    )
    assert active["skipped"] == ["aten.relu.default"]
    assert "DecomposeSilu" not in active["annotation"]  # type: ignore[operator]
    assert "DecomposeVar" in active["annotation"]  # type: ignore[operator]
    assert active["preprocess"] == [
        "InsertRequantize", "InsertIOQDQ", "LayoutTransform", "FuseConsecutiveCast", "FuseConsecutiveTranspose",
    ]  # fmt: skip
    assert "FoldQDQ" not in active["captured"]  # type: ignore[operator]
    assert "ResolveDebugHandle" in active["captured"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["executorch=/nowhere@main"], "executorch=/nowhere@main: there is no such folder"),
        (
            ["executorch=main"],
            (
                "executorch=main: write executorch=1.4.1 for a release, or executorch=PATH@COMMIT with the path of a "
                "git clone"
            ),
        ),
        (
            ["executorch=CLONE@absent"],
            "executorch=CLONE@absent: the clone has no such commit; `git -C CLONE fetch` may bring it",
        ),
        (["x", "passes_off=Absent"], "passes_off=Absent: no such name; one of AnnotateAvgPool1D, "),
        (["x", "operators_skipped=relu"], "operators_skipped=relu: no such name; one of "),
        (["x", "passes_off=[]"], "passes_off=[]: write passes_off=[NAME,NAME]"),
        (["x", "qnn="], "qnn=: no value"),
    ],
)
def test_a_wrong_request_is_one_line(clone: Clone, environ: dict[str, str], words: list[str], message: str) -> None:
    before = [entry.name for entry in prepared_toolchains(environ)]  # type: ignore[union-attr]
    with pytest.raises(RequestError) as caught:
        prepare.add(*parsed_words([word.replace("CLONE", str(clone.folder)) for word in words]), environ)
    assert str(caught.value).startswith(message.replace("CLONE", str(clone.folder)))
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in prepared_toolchains(environ)] == before  # type: ignore[union-attr]


def test_a_commit_that_cannot_be_used_is_one_line(clone: Clone, environ: dict[str, str], tmp_path: Path) -> None:
    other = Clone(tmp_path / "other")
    broken = other.commit("broken", constants=(CONSTANTS, MARK[0], f"raise SystemError('x')\n{MARK[0]}"))
    schema = other.commit(
        "a schema", schema=("serialization/qc_compiler_spec.fbs", "namespace ", "// a line\nnamespace ")
    )
    messages: list[str] = []
    for sha in (broken, schema):
        with pytest.raises(ToolchainUnusable) as caught:
            prepare.add(None, Wanted(executorch=f"{other.folder}@{sha}"), environ)
        messages.append(str(caught.value))
    assert messages == [
        f"executorch: ExecuTorch with QNN backend of {other.folder}@{broken} compiles no program: SystemError: x",
        (
            f"executorch={printable(f'{other.folder}@{schema}')}: backends/qualcomm/{SCHEMA} differs from that of the "
            "installed release, whose C++ code reads it: such a commit needs a build"
        ),
    ]


def test_a_full_disk_is_one_line(clone: Clone, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    with pytest.raises(RequestError) as caught:
        prepare.add("full", Wanted(executorch=f"{clone.folder}@{clone.first}"), environ)
    assert str(caught.value) == (
        f"3 MiB free at {environ['QNNSWEEP_TOOLCHAINS']}, but a toolchain needs 64: free some space, or set "
        "QNNSWEEP_TOOLCHAINS to a folder on another disk"
    )
