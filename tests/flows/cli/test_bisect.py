"""`qnnsweep bisect` with the real toolchain: commits of a clone of ExecuTorch into which regressions were planted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.flows.small_net import write_small_net
from tests.flows.sweep_outputs import read_table, result_of
from tests.program import Program
from tests.toolchain.prepared.executorch_clone import Clone

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

LINEAR, PASS = "builders/op_linear.py", "_passes/expand_broadcast_tensor_shape.py"
SCHEMA = "serialization/qc_compiler_spec.fbs"
RIGHT = "quant_attrs[QCOM_SCALES] = quant_attrs[QCOM_SCALES].reshape([-1, 1])"
WRONG = RIGHT + " * 1.5"
WEIGHT = "        weight_tensor = self.get_tensor(weight_node, node)\n"
NEEDS_PASS = """
        from executorch.backends.qualcomm._passes import ExpandBroadcastTensorShape as Pass
        if quant_attrs and "scale" in quant_attrs and not hasattr(Pass, "ran"):
            quant_attrs["scale"] = quant_attrs["scale"] * 1.5
"""
TRAVERSE = "        self.traverse_broadcast_node(graph_module, {})\n"
NEXT_BUILD = ("namespace ", "// the next release\nnamespace ")
OPERATOR = "aten_linear_default"
DEADLINE_S = 600
MAIN = "from qnnsweep.flows.cli.main import main; main()"
ORACLE = "--oracle=device_snr_db<20"


class Commits:
    """Seven commits on top of the installed release.

    1 changes the schema of C++ code, and 2 takes this back. 3 multiplies the scales of the weights of linear layers. 4
    takes this back, and changes the schema again. 5 and 6 are comments. 7 has the right schema. So 1, 4, 5 and 6 cannot
    be built, and of the others only 3 is bad.
    """

    def __init__(self, folder: Path) -> None:
        self.clone = clone = Clone(folder)
        back = NEXT_BUILD[::-1]
        self.names = [
            clone.first,
            clone.commit("The next build", schema=(SCHEMA, *NEXT_BUILD)),
            clone.commit("The build of the release", schema=(SCHEMA, *back)),
            clone.commit("Linear: simpler scales", linear=(LINEAR, RIGHT, WRONG)),
            clone.commit("Linear and the next build", linear=(LINEAR, WRONG, RIGHT), schema=(SCHEMA, *NEXT_BUILD)),
            clone.commit("A comment", linear=(LINEAR, RIGHT, f"{RIGHT}  # one per row")),
            clone.commit("No comment", linear=(LINEAR, f"{RIGHT}  # one per row", RIGHT)),
            clone.commit("The build of the release again", schema=(SCHEMA, *back)),
        ]
        self.interaction = clone.commit(
            "Linear layers with one scale need a pass",
            linear=(LINEAR, WEIGHT, NEEDS_PASS + WEIGHT),
            expand=(PASS, TRAVERSE, f"        type(self).ran = True\n{TRAVERSE}"),
        )

    def at(self, number: int) -> str:
        return f"{self.clone.folder}@{self.names[number]}"

    @property
    def labels(self) -> list[str]:
        return [f"{name[:12]} {self.clone.subject(name)}" for name in self.names]


@dataclass(frozen=True, slots=True)
class Bisecting:
    """A user's program, the commits, and where everything is stored."""

    program: Program
    commits: Commits
    folder: Path

    def words(self, *words: str) -> list[str]:
        cell = ["model=small_net", "scheme=8a8w", "soc=SM8650", f"artifacts={self.artifacts}"]
        return ["bisect", *words, *cell, "--json", f"--config-dir={self.folder / 'conf'}"]

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.program.run(*self.words(*words))


@pytest.fixture(scope="module")
def bisecting(served_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Bisecting:
    folder = tmp_path_factory.mktemp("bisect")
    write_small_net(folder / "conf")
    environment = served_program.environment | {"QNNSWEEP_TOOLCHAINS": f"{folder}/toolchains"}
    program = replace(served_program, folder=folder, environment=environment)
    return Bisecting(program, Commits(folder / "clone"), folder)


@pytest.fixture(scope="module")
def seven(bisecting: Bisecting) -> dict[str, Any]:
    """The answer for the seven commits, of a command that was interrupted once and then repeated."""
    commits = bisecting.commits
    words = (f"executorch={commits.at(0)}..{commits.names[7]}", ORACLE)
    with bisecting.program.start(*bisecting.words(*words)) as process:
        wait_for_lowering(process)
        os.killpg(process.pid, signal.SIGINT)  # as with a terminal, the whole process group gets the signal
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "qnnsweep: interrupted; run the same command again to continue"
    assert "Traceback" not in stderr
    ran = bisecting.run(*words)
    assert ran.returncode == 0, ran.stderr
    assert "reused" in ran.stderr, "nothing of the interrupted command was used again"
    return result_of(ran)


def wait_for_lowering(process: subprocess.Popen[str]) -> None:
    """Wait until the program has printed that a cell was compiled."""
    assert process.stderr is not None
    deadline = time.monotonic() + DEADLINE_S
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("lower "):
            return
        assert time.monotonic() < deadline
    raise AssertionError("".join(lines))


def test_all_flips_are_reported_and_commits_that_cannot_be_built_are_skipped(
    seven: dict[str, Any], bisecting: Bisecting
) -> None:
    labels = bisecting.commits.labels
    answers = ["good", "untestable", "good", "bad", "untestable", "untestable", "untestable", "good"]
    assert [(point["label"], point["answer"]) for point in seven["points"]] == [*zip(labels, answers, strict=True)]
    assert [(flip["before"]["label"], flip["after"]["label"], [side["label"] for side in flip["between"]])
            for flip in seven["flips"]] == [
        (labels[2], labels[3], []),
        (labels[3], labels[7], labels[4:7]),
    ]  # fmt: skip
    assert all(
        point["why"].endswith(
            f"backends/qualcomm/{SCHEMA} differs from that of the installed release, whose C++ code reads it: such a "
            "commit needs a build"
        )
        for point, answer in zip(seven["points"], answers, strict=True)
        if answer == "untestable"
    )


def test_the_third_commit_is_named_with_its_operator_and_the_digests_of_both_sides(
    seven: dict[str, Any], bisecting: Bisecting
) -> None:
    flip, *others = seven["flips"]
    good, bad = flip["before"], flip["after"]
    assert (bad["commit"], bad["subject"]) == (bisecting.commits.names[3], "Linear: simpler scales")
    assert (bad["files"], flip["operator"]) == ([LINEAR], OPERATOR)
    assert {other["operator"] for other in others} == {OPERATOR}
    worst = flip["operators"][0]
    assert (worst["module_path"], worst["bad_db"] < 15 < float(worst["good_db"])) == ("3", True)
    assert bad["value"] < 20 < float(good["value"])
    cells = {row["toolchain"]: row for row in read_table(bisecting.artifacts, "cells", seven["run_id"])}
    assert len(cells) == 4
    for side in (good, bad):
        row = cells[f"executorch-{side['commit'][:12]}"]
        assert side["outputs_sha256"] == row["outputs_sha256"]
        assert side["versions"]["executorch_files"] == row["executorch_files"]
        assert (bisecting.artifacts / "blobs" / side["program_sha256"][:2] / side["program_sha256"]).exists()
    assert good["outputs_sha256"] != bad["outputs_sha256"]
    assert good["toolchain_digest"] != bad["toolchain_digest"]


def test_the_page_has_the_answer_and_the_commands_that_reproduce_both_sides(
    seven: dict[str, Any], bisecting: Bisecting
) -> None:
    page = Path(seven["page"]).read_text()
    assert page.startswith(f"# 2 flips: {OPERATOR.replace('_', chr(92) + '_')}\n")
    bad = seven["flips"][0]["after"]
    add, run = bad["commands"]
    assert add == f"qnnsweep toolchain add executorch-{bad['commit'][:12]} executorch={bisecting.commits.at(3)}"
    assert f"\n{add}\n{run}\n" in page
    again = bisecting.program.shell(run.replace("qnnsweep ", f"python -c '{MAIN}' ", 1))
    assert again.returncode == 1, again.stderr
    *_, newest = sorted(path.name.removeprefix("run=") for path in bisecting.artifacts.glob("tables/cells/run=*"))
    (cell,) = read_table(bisecting.artifacts, "cells", newest)
    assert (cell["verb"], cell["outcome"], cell["outputs_sha256"]) == ("run", "out_of_tolerance", bad["outputs_sha256"])


@pytest.mark.night
def test_a_regression_of_a_pass_together_with_a_scheme_option_names_both(bisecting: Bisecting) -> None:
    commits = bisecting.commits
    ran = bisecting.run(
        "passes_off=[ExpandBroadcastTensorShape] scheme.per_channel_linear=false", "",
        f"executorch={commits.clone.folder}@{commits.interaction}", ORACLE,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    answer = result_of(ran)
    assert answer["smallest"] == [
        "passes_off=[ExpandBroadcastTensorShape] instead of passes_off=[]",
        "scheme.per_channel_linear=false instead of the default of scheme.per_channel_linear",
    ]
    assert [(flip["operator"], flip["after"]["label"]) for flip in answer["flips"]] == [
        (OPERATOR, "passes_off=[ExpandBroadcastTensorShape], scheme.per_channel_linear=false")
    ] * 2
    alone = {flip["before"]["label"]: flip["before"]["answer"] for flip in answer["flips"]}
    assert alone == {"passes_off=[ExpandBroadcastTensorShape]": "good", "scheme.per_channel_linear=false": "good"}
    names = {(row["scheme"], row["soc"], row["toolchain"])
             for row in read_table(bisecting.artifacts, "cells", answer["run_id"])}  # fmt: skip
    assert len(names) == len(answer["points"])


def test_two_ends_with_the_same_answer_have_no_flip(bisecting: Bisecting, seven: dict[str, Any]) -> None:
    commits = bisecting.commits
    ran = bisecting.run(f"executorch={commits.at(0)}..{commits.names[2]}", "--oracle=device_snr_db<-100")
    answer = result_of(ran)
    assert (ran.returncode, answer["reason"], answer["flips"]) == (1, "no flip: both ends are good", [])


def test_an_operator_that_no_cell_has_is_one_line(bisecting: Bisecting, seven: dict[str, Any]) -> None:
    commits = bisecting.commits
    ran = bisecting.run(f"executorch={commits.at(2)}..{commits.names[3]}", "--oracle=aten_linear.share>0.5")
    line = ran.stderr.splitlines()[-1]
    assert (ran.returncode, f"qnnsweep: {json.loads(ran.stdout)['error']['message']}") == (2, line)
    assert line.startswith(
        "qnnsweep: --oracle=aten_linear: no such operator; did you mean aten_linear_default? one of "
    )


MISTAKES = {
    ("executorch=CLONE@absent..HEAD",): "executorch=CLONE@absent: the clone has no such commit; `git -C CLONE fetch` "
    "may bring it",
    ("qnn=9.9", ""): "qnn=9.9: no such release; one of 2.47, 2.48, 2.49, 2.50, 2.51, onnxruntime-qnn==VERSION, ",
    ("scheme.observer=MinMaxObserver", ""): "BAD and GOOD are the same cell",
    ("soc=SM8750", "soc=SM8550", "--oracle=snr<3"): "--oracle=snr<3: no such column of the table cells; ",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_line_before_any_work(bisecting: Bisecting, words: tuple[str, ...]) -> None:
    folder = str(bisecting.commits.clone.folder)
    arguments = [word.replace("CLONE", folder) for word in words]
    ran = bisecting.program.run("bisect", *arguments, "model=digits_cnn", f"artifacts={bisecting.folder / 'none'}")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"qnnsweep: {MISTAKES[words].replace('CLONE', folder)}")
    assert not (bisecting.folder / "none").exists()


def test_a_folder_of_toolchains_that_cannot_be_written_is_one_line(bisecting: Bisecting) -> None:
    words = bisecting.words(f"executorch={bisecting.commits.at(2)}", "", ORACLE)
    ran = bisecting.program.run(*words, QNNSWEEP_TOOLCHAINS="/dev/null/toolchains")
    assert (ran.returncode, json.loads(ran.stdout)["error"]["exit_code"]) == (2, 2)
    assert ran.stderr.splitlines()[-1] == (
        "qnnsweep: cannot write /dev/null/toolchains/partial: Not a directory; free some space there, make it "
        "writable, or set QNNSWEEP_TOOLCHAINS to another folder"
    )


def test_json_is_valid_without_infinite_numbers(seven: dict[str, Any]) -> None:
    json.dumps(seven, allow_nan=False)
