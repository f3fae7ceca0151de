"""The code of docs/inspector.md: every command in the user's folder, then every line of Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.toolchain]

DOCUMENT = Path(__file__).parents[2] / "docs" / "inspector.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(), flags=re.DOTALL | re.MULTILINE)
SMALL = ("model.evaluation.count=8", "model.calibration.count=32", "limits.parallel=2")

# Prints the values of the page's variables for the tests below, because the page runs in a process of its own.
PRINT_VALUES = """
import json
print(json.dumps({
    "summary": summary.values.tolist(),
    "refused": taken[taken["occurrences_not_delegated"] > 0]["operator"].tolist(),
    "graph": graph,
    "rungs": sorted(map(list, final.index)),
    "worst": final["snr_db"].to_dict().get(("qnn", "device")),
    "top_five": top_five["mse"].tolist(),
    "above": [above["mse"].tolist(), (gaps["mse"] > 1e-4).sum().item()],
    "samples": operators.groupby("backend")["sample"].nunique().to_dict(),
    "unseen": {backend: unseen[backend].to_dict() for backend in ("qnn", "xnnpack")},
    "in_ms": [in_ms["qnn", "shipping", "Method::execute"], in_ms["xnnpack", "shipping", "DELEGATE_CALL #0"]],
    "cycles": cycles[["node", "p50"]].values.tolist(),
    "fused": {row.node: list(row.counted_in) for row in cycles.itertuples() if len(row.counted_in)},
    "accelerator": accelerator["unit"].to_dict(),
    "inside": [list(inside["unit"].unique()), list(inside["delegate_backend"].unique()), list(inside["event"])],
    "both": sorted(both["operator"].unique()),
    "by_type": sorted(by_type.index),
    "in_module": [in_module["mean"].tolist(), list(in_module["operators"].iloc[0])],
    "traces": sorted(set(traces.index[traces != ""])),
    "of_sample": of_sample.index.to_frame()["samples"].groupby(level="backend").nunique().to_dict(),
    "final": [sorted(run_outputs), sorted(reference_outputs)],
    "logged": {name: list(value.shape) for name, value in logged.items()},
    "edge": [node.name for node in edge.graph.nodes if node.op == "call_function"],
    "blocks": [block.name for block in inspector.event_blocks],
}, default=str))
"""


@pytest.fixture(scope="module")
def program(served_program: Program) -> Program:
    return served_program


@pytest.fixture(scope="module")
def folder(program: Program) -> Path:
    """The folder in which all commands of the page ran, before the lines of Python."""
    for kind, text in BLOCKS:
        for line in text.splitlines() if not kind else ():
            if line.startswith("qnnsweep"):
                words = line.split()[1:]
                ran = program.run(*words, *(SMALL if words[0] == "run" else ()))
            else:
                ran = program.shell(line)
            assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
    return program.folder


@pytest.fixture(scope="module")
def values(program: Program, folder: Path) -> dict:
    """The values of the page's variables after every line of Python ran."""
    lines = "".join(text for kind, text in BLOCKS if kind == "python")
    ran = program.python(lines + PRINT_VALUES)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_page_has_only_commands_and_python() -> None:
    assert {kind for kind, _ in BLOCKS} == {"", "python"}
    assert all(
        line.startswith(("qnnsweep ", "python -m ")) for kind, text in BLOCKS if not kind for line in text.splitlines()
    )


def test_the_summary_of_the_delegation(values: dict) -> None:
    assert values["summary"] == [["qnn", 1, 17, 0], ["xnnpack", 1, 11, 0]]
    assert "aten_relu_default" in values["graph"]


def test_the_final_outputs_of_every_rung(values: dict) -> None:
    assert values["rungs"] == [
        [backend, rung]
        for backend in ("qnn", "xnnpack")
        for rung in ("designed", "device", "edge", "exported", "lowered", "quantized")
    ]
    assert values["worst"] > 25


def test_the_five_largest_gaps_and_the_gaps_above_a_threshold(values: dict) -> None:
    assert len(values["top_five"]) == 5
    assert values["top_five"] == sorted(values["top_five"], reverse=True)
    gaps, expected = values["above"]
    assert len(gaps) == expected > 0
    assert min(gaps) > 1e-4
    # A second sample is captured where the device's worst one is another one than on the host, which differs by CPU.
    samples = values["samples"]
    seen = sum(values["unseen"]["qnn"].get(status, 0) for status in ("compared", "masked", "exact"))
    assert (seen, values["unseen"]["xnnpack"]["not_dumped"]) == (7 * samples["qnn"], 8 * samples["xnnpack"])


def test_times_and_cycles(values: dict) -> None:
    assert all(0 < ms < 10_000 for ms in values["in_ms"])
    counted = dict(values["cycles"])
    assert counted["aten_linear_default"] > 0
    assert values["fused"]["aten_convolution_default"] == ["aten_relu_default"]
    assert counted["aten_convolution_default"] == 0
    assert {"us", "cycles", "count"} == set(values["accelerator"].values())
    assert values["inside"][:2] == [["us"], ["XnnpackBackend"]]
    assert "Fully Connected (NC, F32) GEMM #1" in values["inside"][2]
    assert "aten_linear_default" in values["both"]
    assert {"aten.convolution.default", "aten.linear.default", "aten.relu.default"} <= set(values["by_type"])
    (mean,), names = values["in_module"]
    assert mean > 0
    assert {"aten_convolution_default", "aten_relu_default_1"} <= set(names)
    assert "aten_linear_default" in values["traces"]
    assert values["of_sample"] == {"qnn": 8, "xnnpack": 8}


def test_tensors_and_programs(values: dict) -> None:
    assert values["final"] == [[f"{sample}/0" for sample in range(8)]] * 2
    assert values["logged"]["aten_convolution_default@0"] == [1, 8, 8, 16]
    assert "aten_linear_default" in values["edge"]
    assert set(values["blocks"]) == {"Default", "Execute"}


def test_the_spreadsheets_have_the_rows_of_the_latest_run(folder: Path) -> None:
    from qnnsweep.tasks.storage.tables import SCHEMAS

    sheets = {path.stem: path.read_text().splitlines() for path in (folder / "spreadsheets").iterdir()}
    assert {name: lines[0].split("\t") for name, lines in sheets.items()} == {
        name: schema.names for name, schema in SCHEMAS.items()
    }
    (cell,) = sheets["cells"][1:]
    assert cell.split("\t")[1:6] == ["digits_cnn", "fp32", "SM8650", "local", "xnnpack"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--rtol", "0", "--atol", "0"), 1, "test case 0 is not verified: "),
        (("--case", "99"), 1, "test case 99 is not verified: "),
    ],
)
def test_a_bundled_program_that_does_not_match_ends_with_a_message_and_an_exit_code(
    program: Program, folder: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    (bundled,) = folder.glob("artifacts/runs/*/files/digits_cnn/fp32/SM8650/xnnpack/local/program.bpte")
    ran = program.shell(" ".join(["python -m qnnsweep.tasks.toolchain.verify", str(bundled), *options]))
    assert (ran.returncode, ran.stdout.splitlines()[-1][: len(message)]) == (code, message)
