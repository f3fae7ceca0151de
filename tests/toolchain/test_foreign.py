"""Captures that were made without qnnsweep: their operators have the rows of a run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.numpy import load

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.comparison.foreign import ForeignComparison, compare_foreign
from qnnsweep.tasks.comparison.methods import compare_methods
from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Capture, Comparison, LoweredProgram, OperatorComparison
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
    files: list[Path],
    resources: Resources,
    request_8a8w: Request,
    inputs: Path | None = None,
    method: str | None = None,
) -> ForeignComparison:
    program, etrecord, etdump, buffer = files
    captured = CapturedFiles(
        program=program, etrecord=etrecord, etdump=etdump, buffer=buffer, inputs=inputs, method=method
    )
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


def test_a_file_of_torch_export_in_place_of_the_etrecord_is_compared_by_its_outputs(
    tutorial_files: list[Path], resources: Resources, request_8a8w: Request, tmp_path: Path
) -> None:
    def outputs(etrecord: Path) -> ForeignComparison:
        program, _, *capture = tutorial_files
        return compared([program, etrecord, *capture], resources, request_8a8w)

    for name, bias in (("net", 0.0), ("changed", 0.5)):
        torch.export.save(torch.export.export(tutorial.transformer(bias), tutorial.inputs()), tmp_path / f"{name}.pt2")
    net, changed = outputs(tmp_path / "net.pt2"), outputs(tmp_path / "changed.pt2")
    recorded = outputs(tutorial_files[1])
    gaps = [device_gaps(found.comparison, {0: 0})[0] or 0.0 for found in (net, changed, recorded)]
    assert gaps[0] == pytest.approx(gaps[2])
    assert gaps[0] > 100 > 30 > gaps[1]
    assert net.comparison.operators == ()
    assert net.inspector_failed == (
        "a file of torch.export does not say which operator computes a logged tensor; give the ETRecord, which is "
        "recorded with generate_etrecord"
    )


def test_a_method_of_several_is_compared_by_its_name(
    resources: Resources, request_8a8w: Request, tmp_path: Path
) -> None:
    resources.workers.call("lower", tutorial.captured_methods, tmp_path)
    files = [tmp_path / name for name in NAMES]
    for method, given in ((None, "--method"), ("decode", "--method=decode")):
        with pytest.raises(
            RequestError, match=f"^{given}: the methods that compute something are forward, score; name"
        ):
            compared(files, resources, request_8a8w, method=method)
    found = compared(files, resources, request_8a8w, method="score")
    in_head = [row for row in found.comparison.operators if row.operator.module_path == "head"]
    assert [(row.status, row.verdict) for row in in_head] == [("compared", "within_grid")]
    assert (device_gaps(found.comparison, {0: 0})[0] or 0.0) > 100
    assert found.reference == "edge program"  # an ETRecord has the exported program of `forward` alone
    assert (found.inspector, found.inspector_failed) == ({}, "it knows the method forward alone")


def test_the_only_method_need_not_be_called_forward(
    resources: Resources, request_8a8w: Request, tmp_path: Path
) -> None:
    resources.workers.call("lower", tutorial.captured_methods, tmp_path, ["score"])
    found = compared([tmp_path / name for name in NAMES], resources, request_8a8w)
    assert (device_gaps(found.comparison, {0: 0})[0] or 0.0) > 100
    assert [row.status for row in found.comparison.operators if row.operator.module_path == "head"] == ["compared"]


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
    exported = tmp_path / "net.pt2"
    exported.write_bytes(store.read(method.exported.program))
    paths[1] = exported
    alone = compared(paths, resources, request_8a8w, inputs)
    assert device_gaps(alone.comparison, {sample: sample for sample in order.values()}) == device_gaps(ours, order)
    assert found.inspector_failed is not None  # it compares NHWC with NCHW, and no dump of several inferences at all


def device_gaps(comparison: Comparison, order: Mapping[int, int]) -> dict[int, float | None]:
    """Return the SNR of the device's output of each inference. `order`: the number of the inference, by sample."""
    rows = [row for row in comparison.outputs if row.rung == "device" and row.sample in order]
    return {order[row.sample]: row.gap.snr_db for row in rows}


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
