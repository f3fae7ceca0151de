"""`import qnnsweep`: one call from a module to the answer, as users of scripts, notebooks and pytest make it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from tests.flows.api.own_model import LINES
from tests.processes import assert_gone
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

CALL = 'qnnsweep.debug(model, samples, artifacts="artifacts")'
FACTS = """
import json
found = result.culprit
print(json.dumps({
    "run": result.run_id, "command": list(result.facts.command), "passed": result.passed, "snr_db": result.worst_snr_db,
    "culprit": [found.module, found.cause, found.target], "sentence": result.sentence, "text": str(result),
    "columns": list(result.operators.columns[:3]), "outputs": sorted(set(result.outputs["output"])),
    "labels": sorted(set(result.outputs["label"])) if "label" in result.outputs else None,
    "training": model.training, "first": str(found), "calls": result.facts.toolchain_calls,
}))
"""
DIFFERENT = {
    "run_id",
    "execute_s",
    "measured_run",
    "started",
    "latency_p50_ms",
    "raw",
    "log",
    "export_s",
    "quantize_s",
    "sent_bytes",
}
"""Columns of times, of digests of logs, and of what the device had already."""


@pytest.fixture(scope="module")
def user(served_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A user in an empty folder."""
    return replace(served_program, folder=tmp_path_factory.mktemp("user"))


def answers(user: Program, lines: str) -> dict:
    ran = user.python(lines)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def called(user: Program) -> dict:
    """What the call finds for a module that only the user's process knows."""
    return answers(user, f"{LINES}\nimport qnnsweep\nresult = {CALL}\n{FACTS}")


def test_one_call_goes_from_a_module_to_its_culprit(called: dict) -> None:
    module, cause, target = called["culprit"]
    assert called["passed"]
    assert called["snr_db"] > 20
    assert f"{called['snr_db']:.1f} dB" in called["sentence"]
    assert "`qnnsweep repair --config-dir=" in called["sentence"]
    assert cause in ("weights", "resolution", "clipping", "bias", "device")
    assert target.startswith("aten.")
    assert module in ("features", "head", "norm", "")
    assert called["columns"] == ["run_id", "model", "scheme"]
    assert called["outputs"] == ["embedding", "scores"]
    assert "8 samples are compared, 12 others calibrate." in called["text"]
    assert f"\nexamine first: {called['first']}\nreport " in called["text"]
    assert called["training"], "the user's module stays in training mode"


def test_the_command_line_of_the_result_gives_the_same_tables_from_the_cache(user: Program, called: dict) -> None:
    ran = user.run(*called["command"][1:], "--json")
    assert ran.returncode == 0, ran.stderr
    repeated = json.loads(ran.stdout.splitlines()[-1])
    assert repeated["toolchain_calls"] == 0
    compare = f"""
import json, qnnsweep
tables = ("cells", "operators", "outputs", "budget", "delegation", "details")
runs = [qnnsweep.open_run(run) for run in ({called["run"]!r}, {repeated["run_id"]!r})]
different = [
    (table, column)
    for table in tables
    for column in runs[0].table(table).columns
    if not runs[0].table(table)[column].map(repr).equals(runs[1].table(table)[column].map(repr))
]
print(json.dumps({{"different": [pair for pair in different if pair[1] not in {DIFFERENT!r}]}}))
"""
    assert answers(user, compare) == {"different": []}


def test_the_same_call_again_reuses_every_program(user: Program, called: dict) -> None:
    again = answers(user, f"{LINES}\nimport qnnsweep\nresult = {CALL}\n{FACTS}")
    assert again["calls"] == 0
    assert {**again, "run": "", "text": "", "calls": 0} == {**called, "run": "", "text": "", "calls": 0}


def test_a_result_is_repaired_for_an_snr_or_under_a_size(user: Program, called: dict) -> None:
    """No further program is compiled: the target is reached already, or only the budget is."""
    lines = f"""
{LINES}
import json, qnnsweep
result, found = {CALL}, []
for target in ({{"target_db": 1.0, "overrides": []}}, {{"overrides": ["target.effective_bits=8"]}}):
    target["overrides"] += ["budget.compilations=1", "certificate.samples=1"]
    repaired = result.repair(**target)
    steps = repaired.steps
    found.append([repaired.reached, repaired.reason, list(steps["effective_bits"]), list(steps["scheme"])])
print(json.dumps(found))
"""
    unseen = (
        "not certified: the target holds on the samples of the search, but on unseen ones nothing was measured; "
        "give more samples than the calibration and the search use"
    )
    assert answers(user, lines) == [[False, unseen, [8.0], ["8a8w"]]] * 2


def test_a_clipped_input_gets_a_range_with_all_values_that_are_clipped_behind_it(user: Program) -> None:
    """The samples are three times brighter than those of the calibration."""
    lines = """
import json, torch, qnnsweep

class Bright(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 5)

    def forward(self, pixels):
        return self.head(torch.nn.functional.silu(self.layer((pixels - 0.5) / 0.25)).mean((2, 3)))

torch.manual_seed(0)
images = torch.rand(24, 1, 3, 12, 12)
result = qnnsweep.debug(Bright(), list(3 * images[:4]), calibration=list(images[4:]), artifacts="artifacts")
repaired = result.repair(target_db=25, overrides=["budget.compilations=2", "certificate.samples=1"])
first = repaired.steps.iloc[1]
print(json.dumps([result.sentence, first["candidate"], first["predicted_db"], first["measured_db"]]))
"""
    sentence, candidate, predicted_db, measured_db = answers(user, lines)
    assert "clipping in" in sentence
    assert "(a wider fixed range for " in sentence
    assert candidate.startswith("a wider fixed range for ")
    assert candidate.endswith(" and the input pixels")
    assert measured_db > 20
    assert abs(predicted_db - measured_db) < 4


def test_a_repair_keeps_the_keys_of_the_call_unless_they_are_given_again(user: Program) -> None:
    lines = """
import json, torch, qnnsweep
result = qnnsweep.debug(
    torch.nn.Linear(8, 4), list(torch.randn(24, 1, 8)), name="net", count=2, artifacts="artifacts",
    overrides=["measure.operator_samples=1", "measure.cures=0"],
)
repaired = result.repair(1, overrides=["budget.compilations=1", "certificate.samples=1", "measure.cures=1"])
print(json.dumps([word for word in repaired.run.facts.command if word.startswith("measure.")]))
"""
    assert answers(user, lines) == ["measure.operator_samples=1", "measure.cures=1"]


def test_a_wrong_request_raises_the_error_of_the_command(user: Program) -> None:
    lines = f"""
{LINES}
import json, qnnsweep
errors = []
for arguments in ({{"scheme": "9a9w"}}, {{"soc": "SM0"}}, {{"overrides": ["measure.iteration=3"]}}, {{"name": "a b"}}):
    try:
        qnnsweep.debug(model, samples, **arguments)
    except qnnsweep.RequestError as error:
        errors.append(str(error).partition(";")[0])
print(json.dumps(errors))
"""
    assert answers(user, lines) == [
        "scheme=9a9w: no such scheme",
        "soc=SM0: no such soc",
        "measure.iteration: no such key",
        "name=a b: a name consists of letters, digits, '_', '-' and '.'",
    ]


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_nothing_continues_after_an_interrupt_and_after_the_kernel_was_killed(user: Program, how: str) -> None:
    lines = f'{LINES}\nimport qnnsweep\nqnnsweep.debug(model, samples, artifacts="stopped-{how}")'
    with subprocess.Popen(
        [sys.executable, "-c", lines], cwd=user.folder, env=user.environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first == "1 cell to run, 0 impossible\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
        process.communicate(timeout=60)
    assert_gone(children, 30)
    deadline = time.monotonic() + 30
    while left := [each for each in psutil.process_iter(["cmdline"]) if f"stopped-{how}" in str(each.info["cmdline"])]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_the_fixture_of_pytest_fails_with_the_sentence(user: Program) -> None:
    test = f"""
{LINES}

def test_good(qnn):
    qnn(model, samples).assert_ok(snr_db=10)

def test_bad(qnn):
    qnn(model, samples).assert_ok(snr_db=90)
"""
    (user.folder / "test_plates.py").write_text(test)
    (user.folder / "pytest.ini").write_text("[pytest]\n")
    ran = user.shell("python -m pytest -q -p no:cacheprovider test_plates.py")
    assert ran.returncode == 1, ran.stderr
    assert "1 failed, 1 passed" in ran.stdout
    assert "dB is below 90 dB" in ran.stdout
    assert "Worst sample (sample " in ran.stdout
    assert "in _problem" not in ran.stdout, "no line of qnnsweep's own code"


def test_a_notebook_shows_the_sentence_and_the_budget(user: Program) -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [LINES, "import qnnsweep", CALL]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(lines) for lines in cells])
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(user.folder)}})
    client.execute(env=user.environment)
    outputs = notebook.cells[-1].outputs
    (shown,) = [output.data["text/html"] for output in outputs if output.output_type == "execute_result"]
    assert "plate_reader 8a8w SM8650" in shown
    assert "Error budget of" in shown
    assert "<br>On the command line, this is <code>--config-dir=" in shown
    assert "<script" not in shown
    progress = [output for output in outputs if output.output_type == "display_data"]
    assert len(progress) == 1, "one line that changes"


def test_the_public_names_are_these() -> None:
    import qnnsweep

    assert dir(qnnsweep) == [
        "Culprit", "DeviceError", "EnvironmentUnusable", "QnnsweepError", "Repair", "RequestError", "Run", "atlas",
        "bisect", "debug", "diff", "inspect", "open_run", "plan", "qualify", "recompare", "repair", "repro", "run",
        "simulate", "tensors",
    ]  # fmt: skip
    assert all(getattr(qnnsweep, name).__doc__ for name in dir(qnnsweep))


def test_the_package_imports_nothing_until_a_name_is_used() -> None:
    lines = """
import sys, qnnsweep
assert "torch" not in sys.modules
print(sorted(name for name in sys.modules if name.startswith("qnnsweep")))
"""
    ran = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    of_torchvision = ["qnnsweep.tasks", "qnnsweep.tasks.models", "qnnsweep.tasks.models.torchvision_import"]
    assert ran.stdout == f"{['qnnsweep', *of_torchvision]}\n"
