"""The outcome of a cell, from sample records."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import (
    DeviceError,
    EnvironmentUnusable,
    EvidenceError,
    MachineFault,
    RequestError,
    RunnerFailed,
    ToolchainError,
)
from qnnsweep.tasks.numerics.interval import wilson_interval
from qnnsweep.tasks.records import (
    Blob,
    Command,
    Comparison,
    DebugFiles,
    ExportedModel,
    Gap,
    IoCheck,
    ModelFacts,
    Operator,
    OperatorComparison,
    OutputComparison,
    Span,
    Unlogged,
)
from qnnsweep.tasks.records.cell_rows import Finals, Limits
from qnnsweep.tasks.records.vocabulary import Outcome
from qnnsweep.tasks.results.outcome import CellResult, finals, judge
from tests.sample_records import (
    CAPTURE,
    COMPARISON,
    CONV,
    LAUNCH,
    LOWERED,
    LOWERED_METHOD,
    SHIPPING,
    blob,
    passed_cell,
    with_method,
)

BLOB = Blob(sha256="0" * 64, size=1)
EXPORTED = ExportedModel(model=ModelFacts(name="digits_cnn", weights="trained"), methods=())
EXACT = Gap(mse=0.0, mean_abs=0.0, max_abs=0.0, snr_db=None, cosine=1.0)


def output(sample: int, gap: Gap, rung: str = "device", **facts: Any) -> OutputComparison:
    row = OutputComparison(
        rung=rung,
        sample=sample,
        sample_name=f"digit {sample}",
        output_index=0,
        output="logits",
        shape=(1, 10),
        status="compared" if gap.snr_db is not None else "exact",
        gap=gap,
        previous_rung=None,
        previous_snr_db=None,
        label=None,
        top1_reference=None,
        top1_actual=None,
    )
    return replace(row, **facts)


def comparison(*outputs: OutputComparison) -> Comparison:
    return Comparison(outputs=outputs, operators=(), profile=(), observer_effect_snr_db=None, unexpected_events=())


def gap(snr_db: float, cosine: float = 0.5, max_abs: float = 0.25) -> Gap:
    return Gap(mse=0.5, mean_abs=0.125, max_abs=max_abs, snr_db=snr_db, cosine=cosine)


def cell(request: Request, *outputs: OutputComparison, **facts: Any) -> CellResult:
    known = {"exported": EXPORTED, "comparison": comparison(*outputs), "stage": "compare"}
    return CellResult(request=request, **known | facts)


def judged(cell: CellResult) -> tuple[Outcome, str | None]:
    judgement = judge(cell)
    return judgement.outcome, judgement.reason


def test_a_program_with_a_mistake_at_its_inputs_or_outputs_fails_whatever_its_numbers_are(
    request_8a8w: Request,
) -> None:
    passed = IoCheck(
        side="input",
        mistake="x",
        sample=0,
        status="passed",
        relative_error=0.0,
        relative_error_mistaken=1.0,
        detail=None,
    )
    wrong = replace(passed, status="failed", mistake="the outputs come in the order ['b', 'a']")
    good = comparison(output(0, EXACT))
    others = tuple(replace(passed, status=status) for status in ("blind", "unclear", "refused"))
    assert judged(cell(request_8a8w, comparison=replace(good, io_checks=(passed, *others)))) == ("passed", None)
    for detail, in_words in ((None, ""), ("its bytes are int32", " (its bytes are int32)")):
        probed = replace(good, io_checks=(passed, replace(wrong, detail=detail)))
        assert judged(cell(request_8a8w, comparison=probed)) == (
            "failed",
            f"not comparable with the model: {wrong.mistake}{in_words}; the table `probe` has the evidence",
        )


def test_a_cell_whose_lowered_graph_is_another_function_fails_whatever_its_numbers_are(request_8a8w: Request) -> None:
    why = "the lowered graph is another function than the model"
    changed = replace(LOWERED, methods=(replace(LOWERED_METHOD, graph_change=why),))
    assert judged(cell(request_8a8w, output(0, gap(99.0)), lowered=changed)) == ("failed", why)
    assert judged(cell(request_8a8w, output(0, gap(99.0)), lowered=LOWERED)) == ("passed", None)


def test_finals_are_the_worst_output_of_the_worst_sample_on_the_device() -> None:
    final = finals(
        comparison(
            output(0, gap(-99.0, cosine=-1.0, max_abs=99.0), rung="quantized", previous_status="nonfinite_differs"),
            output(0, gap(31.0, cosine=0.75, max_abs=0.5), previous_status="compared", previous_snr_db=60.0),
            output(1, gap(30.0, cosine=0.875, max_abs=0.125), previous_status="compared", previous_snr_db=61.0),
            output(1, EXACT, previous_status="exact"),
        )
    )
    assert final == Finals(
        final_difference="finite",
        final_snr_db=30.0,
        mean_snr_db=pytest.approx(-10 * math.log10((10**-3.1 + 10**-3.0) / 2)),
        mean_snr_db_low=pytest.approx(30.0),
        mean_snr_db_high=pytest.approx(31.0),
        device_difference="finite",
        device_snr_db=60.0,
        final_cosine=0.75,
        final_max_abs=0.5,
        top1_agreement=None,
        top1_agreement_low=None,
        top1_agreement_high=None,
        accuracy=None,
        accuracy_low=None,
        accuracy_high=None,
        accuracy_eager=None,
    )


def test_the_mean_snr_of_twice_the_samples_is_the_same_and_its_interval_is_narrower() -> None:
    ratios = [20.0, 22.0, 25.0, 30.0]
    few, many = (
        finals(comparison(*(output(sample, gap(ratio)) for sample, ratio in enumerate(ratios * times))))
        for times in (1, 4)
    )
    assert few.mean_snr_db == pytest.approx(many.mean_snr_db)
    assert few.mean_snr_db_low is not None
    assert many.mean_snr_db_low is not None
    assert 20 < few.mean_snr_db_low < many.mean_snr_db_low < (many.mean_snr_db or 0) < (many.mean_snr_db_high or 0) < 30


def test_one_sample_has_no_interval() -> None:
    final = finals(comparison(output(0, gap(30.0), top1_reference=3, top1_actual=3, label=3)))
    assert (final.mean_snr_db, final.top1_agreement, final.accuracy) == (pytest.approx(30.0), 1.0, 1.0)
    bounds = {name: value for name, value in asdict(final).items() if name.endswith(("_low", "_high"))}
    measures = ("mean_snr_db", "top1_agreement", "accuracy")
    assert bounds == {f"{measure}_{side}": None for measure in measures for side in ("low", "high")}


def test_finals_of_exact_outputs_have_no_snr() -> None:
    final = finals(comparison(output(0, EXACT), output(1, EXACT)))
    assert (final.final_difference, final.final_snr_db) == ("none", None)
    assert (final.mean_snr_db, final.mean_snr_db_low, final.mean_snr_db_high) == (None, None, None)
    assert final.final_max_abs == 0.0


@pytest.mark.parametrize(
    "row",
    [
        output(1, Gap(), status="nonfinite_differs", nonfinite_actual=3),
        output(1, Gap(max_abs=100.0), status="compared"),
    ],
    ids=["NaN", "not zero where eager is zero"],
)
def test_infinite_noise_is_no_match_and_is_not_hidden_by_a_sample_with_an_snr(row: OutputComparison) -> None:
    final = finals(comparison(output(0, gap(30.0)), row))
    assert (final.final_difference, final.final_snr_db, final.mean_snr_db) == ("infinite", None, None)
    device = replace(row, previous_rung="designed", previous_status=row.status)
    known = replace(device, previous_status="compared", previous_snr_db=50.0)
    assert finals(comparison(known, device)).device_difference == "infinite"
    assert finals(comparison(known, device)).device_snr_db is None


def test_a_device_that_equals_the_rung_designed_has_no_difference() -> None:
    rows = [output(sample, gap(20.0), previous_status="exact") for sample in range(2)]
    assert finals(comparison(*rows)).device_difference == "none"
    # Also where both give NaN.
    nan = output(2, Gap(), status="nonfinite_differs", previous_status="exact")
    assert finals(comparison(*rows, nan)).device_difference == "none"


def test_without_the_rung_designed_the_device_is_not_compared_with_it() -> None:
    final = finals(comparison(output(0, gap(20.0), previous_status="no_value")))
    assert (final.device_difference, final.device_snr_db) == (None, None)


def test_shares_count_ranked_samples_and_labelled_ones() -> None:
    final = finals(
        comparison(
            output(0, EXACT, top1_reference=3, top1_actual=3, label=3),
            output(1, EXACT, top1_reference=3, top1_actual=4, label=4),
            output(2, EXACT, top1_reference=5, top1_actual=5, label=None),
            output(3, EXACT, top1_reference=6, top1_actual=6, label=7),
            output(4, EXACT, top1_reference=None, top1_actual=None, label=9),
        )
    )
    assert (final.top1_agreement, final.accuracy, final.accuracy_eager) == (3 / 4, 2 / 3, 1 / 3)
    assert (final.top1_agreement_low, final.top1_agreement_high) == wilson_interval(3, 4)
    assert (final.accuracy_low, final.accuracy_high) == wilson_interval(2, 3)


def test_an_impossible_cell_has_its_reason(request_8a8w: Request) -> None:
    assert judged(CellResult(request=request_8a8w, impossible="no fp16 there")) == ("impossible", "no fp16 there")


ERRORS = {
    "failed": [
        ToolchainError("lower failed", stage="lower", cause="SIGSEGV"),
        RunnerFailed("aborted", command=Command(argv=(), exit_code=-6, seconds=1.0), log="0" * 64),
        RequestError("no such thing"),
        RuntimeError("a bug of ours"),
        KeyboardInterrupt(),
    ],
    "infrastructure": [
        DeviceError("unplugged"),
        EvidenceError("damaged"),
        EnvironmentUnusable("disk full"),
        MachineFault("lower failed twice: the worker was killed"),
    ],
}


@pytest.mark.parametrize(
    ("outcome", "error"), [(outcome, error) for outcome, errors in ERRORS.items() for error in errors], ids=repr
)
def test_an_error_is_a_failure_of_the_cell_or_of_the_infrastructure(
    request_8a8w: Request, outcome: str, error: BaseException
) -> None:
    assert judged(CellResult(request=request_8a8w, stage="lower", error=error)) == (outcome, None)
    # An error counts whatever was measured before it.
    assert judged(cell(request_8a8w, output(0, gap(99.0)), error=error)) == (outcome, None)


AGREES, DIFFERS = {"top1_reference": 1, "top1_actual": 1}, {"top1_reference": 1, "top1_actual": 2}


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ([output(0, gap(20.0))], None),
        ([output(0, gap(19.96))], "final SNR 20.0 dB is below 20 dB"),
        ([output(0, gap(99.0)), output(1, gap(-3.25))], "final SNR -3.2 dB is below 20 dB"),
        ([output(0, EXACT, status="exact")], None),
        ([output(0, gap(19.0), rung="edge"), output(0, gap(21.0))], None),
        ([output(0, EXACT, **AGREES)] * 3 + [output(1, EXACT, **DIFFERS)], None),
        ([output(0, EXACT, **AGREES), output(1, EXACT, **DIFFERS)], "top-1 agreement 50.0 % is below 75 %"),
        ([output(0, gap(1.0), **DIFFERS)], "final SNR 1.0 dB is below 20 dB; top-1 agreement 0.0 % is below 75 %"),
        ([output(0, Gap(), status="nonfinite_differs")], "output logits of digit 0: nonfinite_differs"),
        # An output that should be all zeros and is not has no SNR, which is no reason to pass.
        (
            [output(0, gap(60.0)), output(1, Gap(max_abs=100.0), status="compared")],
            "output logits of digit 1: all zeros in eager PyTorch, up to 100 away on the device",
        ),
        # A difference that float64 cannot hold.
        ([output(0, Gap(cosine=-1.0), status="compared")], "output logits of digit 0: no finite SNR"),
        # All NaN, in eager PyTorch as well: both outputs are equal, and useless.
        (
            [output(0, gap(60.0)), output(1, Gap(), nonfinite_actual=10, nonfinite_reference=10)],
            "output logits of digit 1: all NaN or infinite, in eager PyTorch as well",
        ),
        (
            [output(1, Gap(), status="nonfinite_differs", nonfinite_actual=10, nonfinite_reference=9)],
            "output logits of digit 1: all NaN or infinite",
        ),
        ([output(0, gap(60.0), nonfinite_actual=9, nonfinite_reference=9)], None),
        ([output(0, Gap(), shape=(0, 10))], None),
        (
            [output(2, Gap(), status="shape_differs"), output(3, Gap(), status="nonfinite_differs")],
            "output logits of digit 2: shape_differs",
        ),
        ([output(2, Gap(), rung="edge", status="nonfinite_differs"), output(2, EXACT)], None),
    ],
)
def test_tolerances_apply_to_the_devices_outputs(
    request_8a8w: Request, outputs: list[OutputComparison], reason: str | None
) -> None:
    expected = ("passed", None) if reason is None else ("out_of_tolerance", reason)
    assert judged(cell(request_8a8w, *outputs)) == expected


def test_the_limits_and_the_columns_that_missed_them_are_named(request_8a8w: Request) -> None:
    strict = replace(request_8a8w, tolerance=replace(request_8a8w.tolerance, introduced_operators=3))
    missed = cell(strict, output(0, gap(1.0), **DIFFERS))
    assert judge(missed).limits == Limits(
        final_snr_db_limit=20.0, top1_agreement_limit=0.75, operators_introduced_limit=3
    )
    assert judge(missed).missed_limits == ("final_snr_db", "top1_agreement")
    assert judge(cell(strict, output(0, Gap(), status="nonfinite_differs"))).missed_limits == ("final_difference",)
    assert judge(cell(strict, output(0, gap(20.0)))).missed_limits == ()


def test_a_scheme_without_a_floor_passes_with_anything_finite(request_8a8w: Request) -> None:
    other = replace(request_8a8w, scheme=replace(request_8a8w.scheme, name="8a4w"))
    assert judged(cell(other, output(0, gap(-50.0), **DIFFERS))) == ("passed", None)
    assert judged(cell(other, output(0, Gap(), status="nonfinite_differs")))[0] == "out_of_tolerance"


def test_the_top1_agreement_of_random_weights_has_no_floor(request_8a8w: Request) -> None:
    random = replace(EXPORTED, model=replace(EXPORTED.model, weights="random"))
    assert judged(cell(request_8a8w, output(0, gap(21.0), **DIFFERS), exported=random)) == ("passed", None)
    assert judged(cell(request_8a8w, output(0, gap(19.0), **DIFFERS), exported=random)) == (
        "out_of_tolerance",
        "final SNR 19.0 dB is below 20 dB",
    )


def operator(index: int, verdict: str, sample: int = 0) -> OperatorComparison:
    row = Operator(
        index=index, name=f"op_{index}", target="aten.add.Tensor", debug_handle=index, output_index=0, source_nodes=(),
        module_path="", stack_trace="", shape=(1,), dtype="float32", quantization=None, axis_order=None, subgraph=0,
        constant=False, unused=False,
    )  # fmt: skip
    return OperatorComparison(operator=row, sample=sample, status="compared", gap=Gap(), verdict=verdict)


@pytest.mark.parametrize(
    ("allowed", "reason"),
    [
        (None, None),
        (2, None),
        (1, "2 operators introduce error (allowed: 1): op_0, op_2"),
        (0, "2 operators introduce error (allowed: 0): op_0, op_2"),
    ],
)
def test_an_operator_that_introduces_error_in_any_sample_counts_once(
    request_8a8w: Request, allowed: int | None, reason: str | None
) -> None:
    rows = [operator(index, verdict) for index, verdict in enumerate(["introduced", "inherited", "introduced"])]
    rows += [operator(0, "introduced", 1), operator(1, "blind", 1), operator(2, "within_grid", 1)]
    compared = replace(comparison(output(0, gap(21.0))), operators=tuple(rows))
    request = replace(request_8a8w, tolerance=replace(request_8a8w.tolerance, introduced_operators=allowed))
    expected = ("passed", None) if reason is None else ("out_of_tolerance", reason)
    assert judged(cell(request, comparison=compared)) == expected


def test_of_many_operators_that_introduce_error_five_are_named(request_8a8w: Request) -> None:
    compared = replace(comparison(), operators=tuple(operator(index, "introduced") for index in range(7)))
    request = replace(request_8a8w, tolerance=replace(request_8a8w.tolerance, introduced_operators=0))
    names = "op_0, op_1, op_2, op_3, op_4"
    assert judged(cell(request, comparison=compared))[1] == f"7 operators introduce error (allowed: 0): {names}"


def test_operators_that_the_device_could_not_log_are_missing_for_a_reason(planned: Request) -> None:
    crashed = replace(
        SHIPPING,
        launch=replace(LAUNCH, name="debug", debug=True, captured=(0, 1)),
        failure="the debug program ended with SIGSEGV on local\nthe end of its output",
    )
    capture = with_method(CAPTURE, results=(SHIPPING, crashed), debug=())
    cell = passed_cell(planned, capture=capture, comparison=replace(COMPARISON, operators=(), budget=()))
    assert judge(cell).reason == "no operators: the debug program ended with SIGSEGV on local"
    alone = [
        DebugFiles(samples=(sample,), outputs=blob("2"), etdump=blob("4"), buffer=blob("5")) for sample in range(2)
    ]
    assert with_method(capture, debug=tuple(alone)).methods[0].failures == {}
    assert with_method(capture, debug=tuple(alone[:1])).methods[0].failures == {None: crashed.failure}


def test_an_operator_that_no_debug_program_logs_is_named_with_the_reason(planned: Request) -> None:
    unlogged = Unlogged(span=Span(first=0, end=1), reason="a program that logs it has other final outputs (20.0 dB)")
    cell = passed_cell(planned, lowered=with_method(LOWERED, unlogged=(unlogged,)))
    assert judge(cell).reason == f"{CONV.name} not logged: {unlogged.reason}"
