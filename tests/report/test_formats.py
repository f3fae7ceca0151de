"""The formats for other tools: each is read by the tool itself, or checked against its schema."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.report.formats.formats import FORMATS
from qnnsweep.tasks.report.formats.names import Format
from tests.sample_tables import RUN, cell, nightly, sweep

SCHEMA = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))
TABLES = sweep(nightly())
OUTCOMES = Counter(row["outcome"] for row in TABLES["cells"])
TRACE = """  File "{here}/net.py", line 12, in forward
    return self.head(x)
  File "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
"""


def text(format_: Format, tables: dict[str, list[dict[str, Any]]] = TABLES) -> str:
    return FORMATS[format_](RUN, tables)


def test_junit_has_a_suite_per_model_and_a_case_per_cell() -> None:
    decoded: Any = SCHEMA.to_dict(text(Format.junit))
    suites = decoded["testsuite"]
    assert {suite["@name"]: suite["@tests"] for suite in suites} == Counter(row["model"] for row in TABLES["cells"])
    assert {word: sum(suite[f"@{word}"] for suite in suites) for word in ("failures", "errors", "skipped")} == {
        "failures": OUTCOMES["out_of_tolerance"],
        "errors": OUTCOMES["failed"] + OUTCOMES["infrastructure"],
        "skipped": OUTCOMES["impossible"],
    }
    (failure,) = {
        case["failure"][0]["@message"] if isinstance(case["failure"], list) else case["failure"]["@message"]
        for suite in suites
        for case in suite["testcase"]
        if "failure" in case and case["@name"].startswith("8a8w/SM8650")
    }
    assert failure.startswith("final_snr_db ")


@given(error=st.text())
def test_any_message_makes_valid_junit(error: str) -> None:
    rows = [cell("m", "8a8w", "SM8650", outcome="failed", error=error, stage="lower")]
    assert SCHEMA.is_valid(text(Format.junit, sweep(rows)))


def test_the_junit_files_of_pytest_are_valid_by_the_same_schema(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): assert False\n"
        "@pytest.mark.skip\n"
        "def test_c(): pass\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError\n"
        "def test_d(broken): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=out.xml", "test_it.py"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1
    SCHEMA.validate(tmp_path / "out.xml")


def test_the_suites_summary_script_reads_the_csv(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    path.write_text(text(Format.suite))
    command = [sys.executable, "-m", "executorch.backends.test.suite.generate_markdown_summary", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    failed = OUTCOMES["out_of_tolerance"] + OUTCOMES["failed"] + OUTCOMES["infrastructure"]
    judged = OUTCOMES["passed"] + failed
    lines = ran.stdout.splitlines()
    assert f"- **Pass**: {OUTCOMES['passed']}/{judged} ({100 * OUTCOMES['passed'] / judged:.2f}%)" in lines
    assert f"- **Fail**: {failed}/{judged} ({100 * failed / judged:.2f}%)" in lines
    assert f"- **Skip**: {OUTCOMES['impossible']}" in lines
    assert f"- **Output Mismatch**: {OUTCOMES['out_of_tolerance']}/{failed}" in lines


def test_the_csv_has_the_suites_field_names() -> None:
    script = "from executorch.backends.test.suite.reporting import CSV_FIELD_NAMES; print(*CSV_FIELD_NAMES, sep=',')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert text(Format.suite).splitlines()[0] == ran.stdout.strip()


def test_the_benchmark_database_gets_a_record_per_metric() -> None:
    records = json.loads(text(Format.hud))
    assert {tuple(record) for record in records} == {("benchmark", "model", "metric", "runners")}
    assert {tuple(record["model"]) for record in records} == {("name", "type", "backend")}
    (snr,) = (
        record
        for record in records
        if (record["model"]["name"], record["benchmark"]["dtype"], record["runners"][0]["type"])
        == ("efficientnet_lite0", "fp16", "SM8650")
        and record["metric"]["name"] == "final_snr_db"
    )
    (row,) = (
        row
        for row in TABLES["cells"]
        if (row["model"], row["scheme"], row["soc"]) == ("efficientnet_lite0", "fp16", "SM8650")
    )
    assert snr["metric"] == {
        "name": "final_snr_db",
        "benchmark_values": [row["final_snr_db"]],
        "target_value": 20.0,
        "extra_info": {},
    }
    assert snr["benchmark"]["extra_info"] == {
        "app_type": "qnnsweep",
        "git_sha": "3b60683923245cf472b7323426920e15623ba361",
        "job_conclusion": "success",
        "run_id": RUN.run_id,
        "started": RUN.started,
        "soc": "SM8650",
        "executorch": "1.5.1",
        "qnn": "v2.49.40.260701",
    }


def test_a_cell_that_did_not_pass_is_a_failure_report_with_its_stage() -> None:
    reports = [
        record["metric"] for record in json.loads(text(Format.hud)) if record["metric"]["name"] == "FAILURE_REPORT"
    ]
    assert len(reports) == OUTCOMES["out_of_tolerance"] + OUTCOMES["failed"] + OUTCOMES["infrastructure"]
    assert {tuple(report["benchmark_values"]) for report in reports} == {(0,)}
    assert {
        report["extra_info"]["failure_type"] for report in reports if report["extra_info"]["outcome"] == "failed"
    } == {row["stage"] for row in TABLES["cells"] if row["outcome"] == "failed"}


def test_a_line_of_the_users_model_that_introduces_an_error_is_annotated() -> None:
    tables = sweep(
        [cell("m", scheme, "SM8650", outcome=outcome) for scheme, outcome in (("8a8w", "passed"), ("16a8w", "passed"))]
    )
    names = {name: tables["cells"][0][name] for name in ("run_id", "model", "soc", "toolchain", "device", "backend")}
    introduces = {
        "operator": "linear",
        "verdict": "introduced",
        "reference": "edge",
        "stack_trace": TRACE.format(here=Path.cwd()),
    }
    operators = [
        {**names, **introduces, "scheme": "8a8w", "introduced_snr_db": 13.04, "sample": 0},
        {**names, **introduces, "scheme": "8a8w", "introduced_snr_db": 12.06, "sample": 1},
        {**names, **introduces, "scheme": "16a8w", "introduced_snr_db": None, "sample": 0},
        {**names, **introduces, "scheme": "16a8w", "verdict": "grid", "operator": "relu", "introduced_snr_db": 1.0},
    ]
    place = "file=net.py,line=12,title=The device computes linear differently"
    message = "linear in m/8a8w/SM8650/qnn/local: introduces an error, 12.1 dB%0Alinear in m/16a8w/SM8650/qnn/local"
    assert text(Format.github, {**tables, "operators": operators}) == f"::warning {place}::{message}\n"
    tables["cells"][0]["outcome"] = "out_of_tolerance"
    assert f"::error {place}::{message}\n" in text(Format.github, {**tables, "operators": operators})


def test_cells_with_one_cause_have_one_annotation_at_the_line_that_the_message_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nets/branching.py", "a/twice.py", "b/twice.py", ".venv/lib/site-packages/other/branching.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    error = "it branches on a value at `if x.sum() > 0` (branching.py:8)"
    failed = [cell("m", "8a8w", soc, outcome="failed", error=error) for soc in ("SM8550", "SM8650")]
    other = cell("m", "16a8w", "SM8650", outcome="failed", error="see (twice.py:3)")
    worse = [
        cell("n", "8a8w", soc, outcome="out_of_tolerance", diagnosis=f"Next: `qnnsweep repair soc={soc}`")
        for soc in ("SM8550", "SM8650")
    ]
    names, outside = ([f"{model}/8a8w/{soc}/qnn/local" for soc in ("SM8550", "SM8650")] for model in "mn")
    sentence = "Next: `qnnsweep repair soc=SM8550,SM8650`"
    assert text(Format.github, sweep([*failed, other, *worse])).splitlines() == [
        f"::error file=nets/branching.py,line=8,title={names[0]} and 1 more%3A failed::{error}%0A{'%0A'.join(names)}",
        "::error title=m/16a8w/SM8650/qnn/local%3A failed::see (twice.py:3)",
        f"::error title={outside[0]} and 1 more%3A out_of_tolerance::{sentence}%0A{'%0A'.join(outside)}",
    ]


@given(st.text())
def test_an_annotation_is_one_line_whatever_the_message_is(error: str) -> None:
    rows = [cell("m", "8a8w", "SM8650", outcome="failed", error=error, stage="lower")]
    (line,) = text(Format.github, sweep(rows)).split("\n")[:-1]
    assert line.startswith("::error title=m/8a8w/SM8650/qnn/local%3A failed::")
