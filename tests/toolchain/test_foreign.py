"""Captures that were made without qnnsweep: their operators have the rows of a run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.numpy import load

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.comparison.foreign import ForeignComparison, compare_foreign
from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Capture, LoweredProgram, OperatorComparison
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.toolchain.captured_files import CapturedFiles

import damage  # isort: skip
import tutorial  # isort: skip

if TYPE_CHECKING:
    from qnnsweep.flows.cells.resources import Resources

pytestmark = pytest.mark.toolchain

NAMES = ("net.pte", "etrecord.bin", "net.etdp", "net.debug")


@pytest.fixture(scope="module")
def tutorial_files(resources: Resources, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tutorial")
    resources.workers.call("lower", tutorial.captured, folder)
    return [folder / name for name in NAMES]


def compared(
    files: list[Path], resources: Resources, request_8a8w: Request, inputs: Path | None = None
) -> ForeignComparison:
    program, etrecord, etdump, buffer = files
    captured = CapturedFiles(program=program, etrecord=etrecord, etdump=etdump, buffer=buffer, inputs=inputs)
    arguments: Any = (captured, request_8a8w.tolerance.operators, resources.store)
    return resources.workers.call("compare", compare_foreign, *arguments).value


def test_the_tutorial_s_operators_are_compared_and_the_gaps_of_the_inspector_are_known(
    tutorial_files: list[Path], resources: Resources, request_8a8w: Request
) -> None:
    found = compared(tutorial_files, resources, request_8a8w)
    rows = {row.operator.name: row for row in found.comparison.operators}
    assert found.inspector_failed is None
    cat, head = rows["aten_cat_default"], rows["aten_linear_default_4"]
    assert (cat.status, cat.verdict, head.status, head.operator.module_path) == (
        "compared", "within_grid", "compared", "head",
    )  # fmt: skip
    # Where both compare one value of the edge graph, they agree.
    for name in ("aten_cat_default", "getitem"):
        assert found.inspector[rows[name].operator.index] == pytest.approx(rows[name].gap.snr_db)
    # All operators of the attention have one debug handle, and several subgraphs and kernels log tensors of it.
    handle = rows["aten_linear_default"].operator.debug_handle
    attention = [row for row in rows.values() if row.operator.debug_handle == handle]
    assert Counter(row.status for row in attention) == {"superseded": 46, "ambiguous": 1}
    assert not {row.operator.index for row in attention} & found.inspector.keys()


def test_a_qnn_program_with_its_etrecord_has_the_rows_of_the_run(
    resources: Resources, request_8a8w: Request, lowered: LoweredProgram, capture: Capture, tmp_path: Path
) -> None:
    (method,), (captured,), store = lowered.methods, capture.methods, resources.store
    (files, *_) = captured.debug
    evaluation = load(store.read(method.exported.evaluation))
    inputs = tmp_path / "inputs.pt"
    torch.save([(torch.from_numpy(evaluation[f"{sample}/image"]),) for sample in files.samples], inputs)
    blobs = (method.debug_programs[0].program, method.etrecord, files.etdump, files.buffer)
    paths = [tmp_path / name for name in NAMES]
    for path, blob in zip(paths, blobs, strict=True):
        assert blob is not None
        path.write_bytes(store.read(blob))
    found = compared(paths, resources, request_8a8w, inputs)
    options = ComparisonOptions(
        classifier=False, tolerances=of_scheme(request_8a8w.tolerance.operators, request_8a8w.scheme.name)
    )
    ours = resources.workers.call("compare", compare_methods, lowered, capture, options, store).value
    order = {sample: number for number, sample in enumerate(files.samples)}
    expected = [replace(row, sample=order[row.sample]) for row in ours.operators if row.sample in order]
    assert plain(found.comparison.operators) == plain(expected)
    assert found.inspector_failed is not None  # it compares NHWC with NCHW, and no dump of several inferences at all


def plain(rows: Sequence[OperatorComparison]) -> dict[tuple[int, str], OperatorComparison]:
    """The rows by name, without what an ETRecord numbers in another way."""
    return {
        (row.sample, row.operator.name): replace(
            row, operator=replace(row.operator, index=0, sources=(), quantization=None, target="")
        )
        for row in rows
    }


def test_damaged_files_are_refused_or_compared_and_nothing_else(
    tutorial_files: list[Path], resources: Resources, request_8a8w: Request, tmp_path: Path
) -> None:
    for number, name in enumerate(("etrecord.bin", "net.etdp")):
        files = [tmp_path / f"{number}-{file.name}" for file in tutorial_files]
        for file, source in zip(files, tutorial_files, strict=True):
            file.write_bytes(source.read_bytes())
        damaged = files[NAMES.index(name)]
        damaged.write_bytes(damage.mutated(damaged.read_bytes()[: 20_000 if number == 0 else None], random.Random(7)))
        with pytest.raises(EvidenceError):
            compared(files, resources, request_8a8w)
