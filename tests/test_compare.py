"""The stage compare on captures of the local device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.schema import MeasureConfig
from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.flows.cells.resources import Resources
from qnnsweep.tasks.bundle import bundle
from qnnsweep.tasks.compare import compare
from qnnsweep.tasks.comparison.tensors import operator_tensors
from qnnsweep.tasks.errors import EvidenceError, RequestError
from qnnsweep.tasks.measure import measure
from qnnsweep.tasks.numerics.noise import in_db, noise_by_sample
from qnnsweep.tasks.records import Blob, Capture, Comparison, LoweredProgram, OperatorComparison
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.records.vocabulary import COMPARED, OPERATOR_STATUSES
from qnnsweep.tasks.results.outcome import finals
from tests.sample_records import with_method

pytestmark = pytest.mark.toolchain

TOLERANCES = {"*": OperatorTolerance(snr_db=28, steps=3)}


def compared(
    resources: Resources, lowered: LoweredProgram, capture: Capture, classifier: bool = True, replay: bool = True
) -> Comparison:
    options = ComparisonOptions(classifier=classifier, tolerances=TOLERANCES, replay=replay)
    return compare(lowered, capture, options, store=resources.store, workers=resources.workers)


def test_a_record_does_not_choose_the_code_of_a_backend(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    with pytest.raises(EvidenceError, match="the program is of the backend cProfile:Profile, which the request does"):
        compared(resources, replace(lowered, backend="cProfile:Profile"), capture)


def test_every_operator_and_every_output_has_one_row(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    comparison = compared(resources, lowered, capture)
    assert [(row.sample, row.operator) for row in comparison.operators] == [
        (sample, operator) for sample in capture.methods[0].captured for operator in lowered.methods[0].operators
    ]
    statuses = [row.status for row in comparison.operators]
    assert set(statuses) <= set(OPERATOR_STATUSES)
    for sample in capture.methods[0].captured:
        rows = [row for row in comparison.operators if row.sample == sample]
        assert sum(row.status in COMPARED for row in rows) >= 7
        assert all((row.gap.mse is not None) == (row.status in COMPARED) for row in rows)
    names = lowered.quantized.exported.methods[0].sample_names
    assert [(row.rung, row.sample_name, row.output_index, row.status) for row in comparison.outputs] == [
        (rung, name, 0, "exact" if rung == "exported" else "compared")
        for rung in ("exported", "lowered", "edge", "designed", "device", "quantized")
        for name in names
    ]
    assert {(row.rung, row.previous_rung) for row in comparison.outputs} == {
        ("exported", None),
        ("lowered", "exported"),
        ("edge", "lowered"),
        ("designed", "edge"),
        ("device", "designed"),
        ("quantized", "exported"),
    }
    for row in comparison.outputs:
        assert (row.previous_status is None) == (row.rung == "exported")
        assert (row.previous_snr_db is None) == (row.previous_status in (None, "exact"))
    assert comparison.unexpected_events == ()
    assert finals(comparison).top1_agreement == 1.0
    assert (finals(comparison).final_snr_db or 0) > 25
    assert finals(comparison).device_difference == "finite"
    assert comparison.observer_effect in ("none", "finite")
    assert {row.name for row in comparison.profile} >= {"Method::execute", "Program::load_method"}


def test_the_operators_that_matter_have_the_distribution_of_their_error(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    comparison = compared(resources, lowered, capture)
    largest = next(share for share in comparison.budget if share.operator_index is not None)
    assert largest.operator in {detail.operator for detail in comparison.details}
    samples = {detail.sample for detail in comparison.details}
    assert len(samples) == 1
    rows = {row.operator.name: row for row in comparison.operators if row.sample in samples}
    for detail in comparison.details:
        row = rows[detail.operator]
        elements = np.prod(row.operator.shape or ())
        assert (
            sum(detail.distribution.histogram) < elements
            if row.masked_by
            else sum(detail.distribution.histogram) == elements
        )
        assert detail.unit == ("steps" if row.operator.quantization else "value")
        if row.parts.range_used is not None:
            assert None not in (detail.grid_least, detail.grid_largest, detail.value_least)
    image = next(detail.distribution for detail in comparison.details if detail.distribution.heat_rows)
    assert len(image.heat) == (image.heat_rows or 0) * (image.heat_columns or 0)
    assert compared(resources, lowered, capture, replay=False).details == ()


def test_all_elements_of_an_operator_can_be_read(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    comparison = compared(resources, lowered, capture)
    *_, last = captured = capture.methods[0].captured
    row = next(
        row for row in comparison.operators if row.sample == last and row.parts.range_used and row.status == "compared"
    )

    def tensors_of(operator: str, sample: int) -> dict[str, NDArray[Any]]:
        arguments = (lowered.methods[0], capture.methods[0], operator, sample, resources.store)
        return resources.workers.call("compare", operator_tensors, *arguments).value

    tensors = tensors_of(row.operator.name, last)
    assert list(tensors) == ["device", "reference", "quantized", "on_host"]
    assert {tensor.shape for tensor in tensors.values()} == {row.operator.shape}
    assert np.square(tensors["device"] - tensors["reference"]).mean() == pytest.approx(row.gap.mse)
    with pytest.raises(RequestError, match="OPERATOR=nothing: no such operator; `qnnsweep list operators` lists them"):
        tensors_of("nothing", last)
    choices = ", ".join(map(str, captured))
    with pytest.raises(RequestError, match=f"--sample=8: its operators were not captured; choose one of {choices}"):
        tensors_of(row.operator.name, 8)


def test_the_rung_designed_has_the_noise_of_the_device(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    comparison = compared(resources, lowered, capture, replay=False)
    snr_db: dict[str, float] = {}
    for rung in ("edge", "designed", "device"):
        noise = [*noise_by_sample(row for row in comparison.outputs if row.rung == rung).values()]
        snr_db[rung] = in_db(float(np.mean(noise))) or 0.0
    # The weights alone make less noise than the weights and the grids, which make that of the device.
    assert snr_db["edge"] > snr_db["device"] + 1
    assert snr_db["designed"] == pytest.approx(snr_db["device"], abs=1)
    assert (finals(comparison).device_snr_db or 0) > 30


def test_an_operator_that_was_compared_is_judged_on_the_devices_own_inputs(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    replayed, total = (compared(resources, lowered, capture, replay=replay).operators for replay in (True, False))
    for row, alone in zip(replayed, total, strict=True):
        assert (row.verdict == "blind") == (row.status not in COMPARED), row.operator.name
        assert (row.parts.introduced_max_abs is not None) == (row.status in COMPARED)
        assert (row.parts.introduced_steps is not None) == (row.status in COMPARED)
        # Without the replay no row has a verdict, and all elements are compared.
        status, gap = (alone.status, alone.gap) if row.status == "masked" else (row.status, row.gap)
        assert alone == OperatorComparison(
            operator=row.operator, sample=row.sample, status=status, gap=gap, verdict="blind"
        )
    verdicts = {row.verdict for row in replayed if row.status in COMPARED}
    assert verdicts <= {"within_grid", "exact"}  # the simulator computes this model correctly
    ratios = [row.parts.introduced_snr_db for row in replayed if row.parts.introduced_snr_db is not None]
    # Measured: 36.6 to 42.9 dB, a step of the eight-bit grid. Operators that move quantized values introduce no error.
    assert len(ratios) >= 8
    assert min(ratios) > 34
    assert np.median(ratios) > 37
    exact = {row.operator.target for row in replayed if row.parts.introduced_max_abs == 0}
    assert exact >= {"getitem", "aten.view_copy.default"}


def test_a_model_that_is_not_a_classifier_has_no_top1_columns(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    comparison = compared(resources, lowered, capture, classifier=False)
    assert {(row.top1_reference, row.top1_actual) for row in comparison.outputs} == {(None, None)}
    assert finals(comparison).top1_agreement is None
    assert finals(comparison).accuracy is None


def test_an_etdump_with_another_number_of_inferences_is_refused(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    # The shipping program's log: eight inferences, where the debug program had two.
    (captured,) = capture.methods
    wrong = with_method(capture, debug=(replace(captured.debug[0], etdump=captured.etdump),))
    with pytest.raises(EvidenceError) as refused:
        compared(resources, lowered, wrong)
    assert str(refused.value) == (
        "the debug program's etdump holds 8 inferences, but 2 were requested; measure again with reuse=programs"
    )


def test_final_outputs_are_compared_without_a_debug_program(
    lowered: LoweredProgram, capture: Capture, resources: Resources, tmp_path: Path
) -> None:
    plain = with_method(lowered, debug_programs=())
    packed = bundle(plain, MeasureConfig(iterations=2, warm_up=1), store=resources.store)
    assert [launch.name for launch in packed.launches] == ["shipping"]
    device = DeviceConfig(name="fresh", work_folder=str(tmp_path / "device"))
    back = measure(packed, (device,), None, store=resources.store, farm=resources.farm)
    (files,) = back.methods
    assert files.debug == ()
    assert files.outputs == capture.methods[0].outputs  # bit-equal in the simulator, however often it ran before
    comparison = compared(resources, plain, back)
    assert (comparison.operators, comparison.observer_effect, comparison.observer_effect_snr_db) == ((), None, None)
    assert len(comparison.outputs) == 8 * 6
    (execution,) = (event for event in comparison.profile if event.name == "Method::execute")
    assert len(execution.raw) == 8 * 2  # warm-ups are not measurements


def test_a_lost_capture_is_an_error_with_a_remedy(
    lowered: LoweredProgram, capture: Capture, resources: Resources
) -> None:
    lost = with_method(capture, outputs=Blob(sha256="0" * 64, size=1))
    with pytest.raises(EvidenceError, match=r" is missing: run again to compute it again"):
        compared(resources, lowered, lost)
