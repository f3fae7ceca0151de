"""The certificate of a bisection and its page, from sample cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.schema import Request
from qnnsweep.flows.bisection.certificate import certified_flip
from qnnsweep.flows.bisection.flow import BisectionResult
from qnnsweep.flows.bisection.page import markdown_page, summary, write_page
from qnnsweep.flows.bisection.probes import Probe
from qnnsweep.flows.bisection.request import Bisection, Point
from qnnsweep.flows.runs.results import SweepResult
from qnnsweep.tasks.results.oracle import judgement, parsed_oracle, untestable
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.commits import Commit
from tests.sample_records import COMPARISON, LOWERED, TOOLCHAIN, blob, passed_cell, two_methods_cell, up_to_lower
from tests.sample_tables import RUN

ORACLE = parsed_oracle("final_snr_db<35")
SHAS = ("a" * 40, "b" * 40, "c" * 40)


@pytest.fixture(scope="module")
def request_() -> Request:
    return load(["tolerance=none"]).cells[0].request


def point(number: int) -> Point:
    commit = Commit(clone=Path("/clone"), sha=SHAS[number], subject=f"change {number}", files=("builders/op.py",))
    words = ("scheme=8a8w", f"executorch=/clone@{commit.sha}")
    return Point(label=f"{commit.sha[:12]} {commit.subject}", words=words, commit=commit)


def probe(number: int, cell: CellResult) -> Probe:
    cell = replace(cell, toolchain=replace(TOOLCHAIN, executorch_files=f"{number}" * 64))
    tables = rows(RUN.run_id, [cell], TOOLCHAIN)
    name, judged = f"executorch-{number}", judgement(ORACLE, tables)
    return Probe(number=number, point=point(number), judgement=judged, toolchain=name, cell=cell, tables=tables)


def good_probe(request: Request) -> Probe:
    """Return a probe whose operator `conv` is exact and whose lowest SNR is 40 dB."""
    outputs = (COMPARISON.outputs[0],)
    operators = [replace(row, parts=replace(row.parts, introduced_mse=0.0)) for row in COMPARISON.operators]
    better = replace(COMPARISON, outputs=outputs, operators=tuple(operators))
    return probe(0, passed_cell(request, comparison=better, lowered=replace(LOWERED, program=blob("0", 1000))))


def result(probes: Sequence[Probe], pairs: Sequence[tuple[Probe, Probe, Sequence[Probe]]]) -> BisectionResult:
    return BisectionResult(
        run=SweepResult(run=RUN, cells=(), page=Path("report.html"), trends=()),
        bisection=Bisection(key="executorch", points=tuple(measured.point for measured in probes)),
        oracle=ORACLE,
        probes=probes,
        flips=[certified_flip(*pair, [Path("/my conf")], "token") for pair in pairs],
        smallest=(),
        reason="1 flip",
        is_undecided=False,
    )


def test_the_certificate_has_both_sides_the_operator_and_the_commands(request_: Request, tmp_path: Path) -> None:
    good, bad = good_probe(request_), probe(2, passed_cell(request_))
    skipped = Probe(number=1, point=point(1), judgement=untestable(why="needs a build"))
    answer = result([good, skipped, bad], [(good, bad, [skipped])])
    page = Path(write_page(answer, Store(tmp_path)))
    assert page == tmp_path / "runs" / RUN.run_id / "bisect.md"
    lines = page.read_text().splitlines()
    assert lines[0] == "# cccccccccccc change 2 is the first that is bad: conv"
    expected = {
        "| aaaaaaaaaaaa change 0 | good | 40 |",
        "| bbbbbbbbbbbb change 1 | untestable | needs a build |",
        "| cccccccccccc change 2 | bad | 30 |",
        "Between the two, untestable: bbbbbbbbbbbb change 1.",
        "| final\\_snr\\_db | 40 | 30 |",
        "| executorch\\_files | 000000000000 | 222222222222 |",
        "| conv | layers.0 | ∞ | 20.0 |",
        "Changed in the QNN backend: `builders/op.py`.",
        f"qnnsweep toolchain add executorch-2 executorch=/clone@{SHAS[2]}",
        "qnnsweep run '--config-dir=/my conf' scheme=8a8w toolchain=executorch-2",
    }
    assert expected - {*lines} == set()
    contents = summary(answer)
    (flip,) = contents["flips"]
    assert (flip["operator"], flip["operators"][0]["good_db"]) == ("conv", math.inf)
    assert (flip["before"]["program_sha256"], flip["after"]["program_sha256"]) == ("0" * 64, "6" * 64)
    assert flip["after"]["commit"] == SHAS[2]


def test_sides_that_differ_in_the_second_method_only_have_other_digests(request_: Request) -> None:
    sides = [probe(number, two_methods_cell(request_, decode=letter)) for number, letter in enumerate("67")]
    before = replace(sides[0], judgement=replace(sides[0].judgement, answer="good"))
    after = replace(sides[1], judgement=replace(sides[1].judgement, answer="bad"))
    (flip,) = result(sides, [(before, after, ())]).flips
    assert None not in (flip.before.outputs_sha256, flip.after.outputs_sha256)
    assert flip.before.outputs_sha256 != flip.after.outputs_sha256


def test_a_cell_that_fails_has_its_error_instead_of_operators(request_: Request) -> None:
    good = good_probe(request_)
    failed = probe(1, up_to_lower(request_, "lower", RuntimeError("no context binary\nmore")))
    broken = replace(failed, judgement=replace(good.judgement, answer="bad", value="failed"))
    (flip,) = result([good, broken], [(good, broken, ())]).flips
    assert (flip.operators, flip.operator, flip.bad.error) == ((), None, "no context binary")
    assert "| error | – | no context binary |" in markdown_page(result([good, broken], [(good, broken, ())]))


def test_a_bisection_without_a_flip_says_why(request_: Request) -> None:
    good = good_probe(request_)
    answer = replace(result([good], []), reason="no flip: both ends are good")
    assert markdown_page(answer).startswith("# no flip: both ends are good\n")
