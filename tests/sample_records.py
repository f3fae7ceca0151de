"""Sample records, and one cell of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.errors import DeviceError, RunnerFailed, ToolchainError
from qnnsweep.tasks.records import (
    Comparison,
    ContextFacts,
    DelegateFacts,
    ErrorDetail,
    ErrorDistribution,
    ErrorParts,
    ErrorShare,
    Gap,
    IoCheck,
    MetricValue,
    OperatorComparison,
    OutputComparison,
    ProfiledEvent,
    ProgramCheck,
    ProgramFacts,
    ScoreStatistic,
    StepComparison,
)
from qnnsweep.tasks.records.vocabulary import Cause
from qnnsweep.tasks.results.outcome import CellResult

from qnnsweep.tasks.records import (  # isort: skip
    Blob, Bundle, Capture, CapturedMethod, CaseOutcome, ChosenSample, Command, CompileFacts, DebugFiles, DebugProgram,
    DelegationCount, Design, ExportedMethod, ExportedModel, Launch, LaunchedMethod, LaunchResult, LoweredMethod,
    LoweredProgram, ModelFacts, Operator, Quantization, QuantizedMethod, QuantizedModel, StageCall, TensorSpec,
    Toolchain,
)  # fmt: skip

GRID = Quantization(scale=(0.5,), zero_point=(3,), axis=None, quant_min=0, quant_max=255, dtype="uint8")


def blob(letter: str, size: int = 1) -> Blob:
    return Blob(sha256=letter * 64, size=size)


def with_method(record: Any, **changes: Any) -> Any:
    """A record of a program with one method, with changes of this method."""
    (method,) = record.methods
    return replace(record, methods=(replace(method, **changes),))


EXPORTED_METHOD = ExportedMethod(
    program=blob("1"), inputs=(TensorSpec(name="image", shape=(1, 1, 8, 8), dtype="float32"),),
    outputs=(TensorSpec(name="logits", shape=(1, 2), dtype="float32"),), calibration=None, calibration_samples=0,
    evaluation=blob("2"), sample_names=("a", "b"), labels=(7, None), outputs_eager=blob("3"),
    outputs_exported=blob("c"), input_mistakes=(), mistaken_outputs=blob("3"),
)  # fmt: skip
MODEL = ModelFacts(name="digits_cnn", weights="trained")
MADE = (
    StageCall(stage="export", seconds=1.5, log=blob("a")), StageCall(stage="quantize", seconds=2.5, log=blob("b")),
    StageCall(stage="edge", seconds=5.5), StageCall(stage="lower", seconds=3.5, log=blob("c")),
)  # fmt: skip
EXPORTED = ExportedModel(model=MODEL, methods=(EXPORTED_METHOD,), made=MADE[:1])
QUANTIZED_METHOD = QuantizedMethod(exported=EXPORTED_METHOD, program=blob("4"), outputs_quantized=blob("5"))
QUANTIZED = QuantizedModel(model=MODEL, methods=(QUANTIZED_METHOD,), made=MADE[:2])
CONV = Operator(
    index=0, name="conv", target="aten.convolution.default", debug_handle=4, output_index=0, source_nodes=("conv2d",),
    module_path="layers.0", stack_trace="line 3", shape=(1, 2, 8, 8), dtype="float32", quantization=GRID,
    axis_order=(0, 2, 3, 1), subgraph=0, constant=False, unused=False,
)  # fmt: skip
VIEW = Operator(
    index=1, name="view", target="aten.view_copy.default", debug_handle=None, output_index=0, source_nodes=(),
    module_path="", stack_trace="", shape=None, dtype=None, quantization=None, axis_order=None, subgraph=None,
    constant=False, unused=False,
)  # fmt: skip
CONTEXT = ContextFacts(
    build="v2", soc="SM8650", arch=75, vtcm_mib=8, optimization_level=3, kernel_elements=("ufixed8",), tensors=()
)
DELEGATE = DelegateFacts(
    backend="QnnBackend", size=500, calls=1, soc="SM8650", arch=75, vtcm_mib=8, precision="quantized", dumps=False,
    context=CONTEXT, unread=None,
)  # fmt: skip
FACTS = ProgramFacts(
    inputs=(), outputs=(), kernel_calls=3,
    delegates=(DELEGATE, replace(DELEGATE, context=None, unread="not a readable QNN context binary")),
)  # fmt: skip
CHECKED = ProgramCheck(
    program="shipping", subgraph=0, check="QNN build", subject=None, asked="v2", got="v2", status="met", reason=None,
)  # fmt: skip
TOOLCHAIN = Toolchain(
    python="3.11.7",
    torch="2.13.0",
    executorch="1.5.1",
    torchao="0.18.0",
    qnn="v2.49.40.260701",
    executorch_commit="3b60683923245cf472b7323426920e15623ba361",
)
LOWERED_METHOD = LoweredMethod(
    quantized=QUANTIZED_METHOD, etrecord=None,
    debug_programs=(DebugProgram(program=blob("7", 2000), unavailable=None, buffer_bytes=64),),
    input_qparams=(GRID,), output_operators=(1,), operators=(CONV, VIEW),
    expected_tensors=(), chosen=(ChosenSample(sample=0, role="typical"), ChosenSample(sample=1, role="worst")),
    choosable=2, reference_calls=blob("e"), reference_constants=blob("f"), outputs_lowered=blob("9", 3),
    reference=(blob("8"), blob("8")), outputs_edge=blob("9"),
    design=Design(halves=(), merged=(), shared_biases=(), written=(), largest_weight=None),
    outputs_designed=blob("9", 2),
    designed_unavailable=None,
    delegation=(
        DelegationCount(operator="conv", delegated=5, not_delegated=0, refusals=()),
        DelegationCount(operator="view", delegated=1, not_delegated=2, refusals=("no layout",)),
    ),
    delegated_subgraphs=2, delegated_graph=blob("0"),
    compile_facts=(
        CompileFacts(subgraph=0, spill_bytes=1, fill_bytes=2, write_total_bytes=3, read_total_bytes=4),
        CompileFacts(subgraph=1, spill_bytes=10, fill_bytes=20, write_total_bytes=30, read_total_bytes=40),
    ),
    facts=FACTS,
)  # fmt: skip
LOWERED = LoweredProgram(
    model=MODEL, scheme="8a8w", backend="qnn", soc="SM8650", program=blob("6", 1000), bundled_program=None,
    methods=(LOWERED_METHOD,),
    checks=(CHECKED,), made=MADE,
)  # fmt: skip
LAUNCH = Launch(
    name="shipping", program=LOWERED.program, input_list=blob("d"), samples=2, debug=False, debug_buffer_bytes=0,
    events=5, iterations=1, warm_up=0, methods=(LaunchedMethod(name=None, index=0, outputs=EXPORTED_METHOD.outputs),),
)  # fmt: skip
SHIPPING = LaunchResult(
    launch=LAUNCH, folder="/device", command=Command(argv=("python", "runner"), exit_code=0, seconds=4.0),
    latencies_ms=(2.0, 6.0), log=blob("e"),
)  # fmt: skip
DEBUG = replace(
    SHIPPING, launch=replace(LAUNCH, name="debug", debug=True, captured=(0, 1)), latencies_ms=(500.0,), log=blob("f"),
    command=Command(argv=("python", "runner", "--dump"), exit_code=0, seconds=8.0),
)  # fmt: skip
CAPTURED_METHOD = CapturedMethod(
    results=(SHIPPING, DEBUG), outputs=blob("1"), etdump=blob("3"),
    debug=(DebugFiles(samples=(0, 1), outputs=blob("2"), etdump=blob("4"), buffer=blob("5")),),
)  # fmt: skip
CAPTURE = Capture(device="local", methods=(CAPTURED_METHOD,), measured_run="20261120T220000Z-0000")
GAP = Gap(mse=0.25, mean_abs=0.5, max_abs=0.75, snr_db=40.0, cosine=0.875)
WORSE = Gap(mse=0.5, mean_abs=0.625, max_abs=1.5, snr_db=30.0, cosine=0.75)
PARTS = ErrorParts(
    inherited_snr_db=50.0, grid_snr_db=60.0, clipped_elements=1, codes_used=100, range_used=0.5, least_value=-0.25,
    largest_value=1.5, introduced_mse=0.125,
    introduced_snr_db=20.0, introduced_channel_snr_db=10.0, introduced_max_abs=0.375, introduced_steps=3.0,
    introduced_p999_steps=2.5, introduced_rms_steps=1.5, introduced_mean_steps=0.25, introduced_mean_steps_error=0.125,
    introduced_gain=1.25,
)  # fmt: skip
TOTALS: dict[Cause, float] = {
    "graph": 0.0, "weights": 0.5, "bias": 0.0, "clipping": 0.25, "resolution": 0.0625, "overflow": 0.0, "device": 0.125,
    "observer": 0.0, "unexplained": 0.0625,
}  # fmt: skip
DISTRIBUTION = ErrorDistribution(
    largest_error=1.5, histogram=(1, 0, 7), channel_axis=1, channels=2, channel_errors=(0.5, 0.25), heat_rows=2,
    heat_columns=1, heat=(0.5, 0.125),
)  # fmt: skip
DETAIL = ErrorDetail(
    operator="conv", operator_index=0, sample=1, unit="steps", distribution=DISTRIBUTION,
    value_least=-1.0, value_largest=2.0, grid_least=-2.0, grid_largest=2.0,
)  # fmt: skip
BUDGET = (
    *(
        ErrorShare(
            output_index=0, output="logits", cause=cause, operator=None, operator_index=None, module_path=None,
            share=share, share_error=0.0, alone_snr_db=None, without_snr_db=None, sample=1,
        )
        for cause, share in TOTALS.items()
    ),
    ErrorShare(
        output_index=0, output="logits", cause="weights", operator="conv", operator_index=0, module_path="layers.0",
        share=0.5, share_error=0.0, alone_snr_db=33.0, without_snr_db=None, sample=1,
    ),
    ErrorShare(
        output_index=0, output="logits", cause="device", operator="conv", operator_index=0, module_path="layers.0",
        share=0.25, share_error=0.0625, alone_snr_db=35.0, without_snr_db=None, sample=1,
    ),
)  # fmt: skip
ANSWER = OutputComparison(
    rung="device", sample=0, sample_name="a", output_index=0, output="logits", shape=(1, 2), status="compared", gap=GAP,
    previous_rung="designed", previous_status="compared", previous_snr_db=45.0, label=7, top1_reference=7,
    top1_actual=7,
)  # fmt: skip
PROBED = IoCheck(
    side="input", mistake="x", sample=1, status="passed", relative_error=0.25, relative_error_mistaken=2.0, detail=None,
)  # fmt: skip
STEP = StepComparison(
    sample=0, sample_name="a", step=1, method_sample=1, token=None, token_reference=None, text=None,
    text_reference=None, label=None, margin=None, score_error=None, total_snr_db=30.0, introduced_snr_db=40.0,
    inherited_snr_db=31.0, state_total_snr_db=32.0, state_introduced_snr_db=50.0, origin="inherited", at_ends=0.25,
)  # fmt: skip
COMPARISON = Comparison(
    steps=(STEP,),
    scores=(
        ScoreStatistic(
            statistic="kl_divergence_mean", value=0.125, low=0.0625, high=0.25, tokens=40, sequences=4
        ),
    ),
    outputs=(ANSWER, replace(ANSWER, sample=1, sample_name="b", gap=WORSE, label=None, top1_actual=1)),
    operators=(
        OperatorComparison(
            operator=CONV, sample=0, status="masked", gap=GAP, nonfinite_actual=1, nonfinite_reference=2,
            parts=PARTS, verdict="introduced", masked_elements=5, masked_by=("relu",), spans=("pad",),
        ),
        OperatorComparison(operator=VIEW, sample=0, status="no_handle", gap=Gap(), why="no such kernel"),
        OperatorComparison(
            operator=CONV, sample=1, status="exact", gap=replace(GAP, mse=0.0, snr_db=None), verdict="exact"
        ),
        OperatorComparison(operator=VIEW, sample=1, status="no_handle", gap=Gap()),
    ),
    profile=(
        ProfiledEvent(
            program="shipping", same_outputs=True, event_block="Execute", name="DELEGATE_CALL #0", kind="delegate_call",
            node=None, instruction=0, unit="us", raw=(0.0, 10.0), inferences=(0, 1), samples=(0, 1),
            debug_handles=(4,), operators=(CONV,), backend="QnnBackend", subgraph=0, counted_in=(),
        ),
    ),
    observer_effect="finite",
    observer_effect_snr_db=60.0,
    metrics=(
        MetricValue(
            operator="conv", operator_index=0, debug_handle=4, output_index=0, sample=1, rung="device",
            reference="edge", metric="l1", value=1.5, problem=None,
        ),
    ),
    unexpected_events=(),
    io_checks=(PROBED,),
    budget=BUDGET,
    details=(DETAIL,),
)  # fmt: skip


def passed_cell(request: Request, **changes: Any) -> CellResult:
    cell = CellResult(
        request=request, exported=EXPORTED, quantized=QUANTIZED, lowered=LOWERED,
        bundle=Bundle(runner=blob("1"), blobs=(), launches=(LAUNCH,)), capture=CAPTURE,
        comparison=COMPARISON, stage="compare",
    )  # fmt: skip
    return replace(cell, **changes)


def up_to_lower(request: Request, stage: str, error: BaseException | None) -> CellResult:
    return passed_cell(request, stage=stage, error=error, capture=None, comparison=None)


def without_debug_program(request: Request) -> CellResult:
    refused = DebugProgram(program=None, unavailable="already inserted")
    lowered = with_method(LOWERED, debug_programs=(refused,), compile_facts=())
    capture = with_method(CAPTURE, results=(SHIPPING,), debug=())
    comparison = replace(COMPARISON, operators=(), budget=(), observer_effect=None, observer_effect_snr_db=None)
    return passed_cell(request, lowered=lowered, capture=capture, comparison=comparison)


ABORT = RunnerFailed(
    "the debug program ended with SIGABRT",
    command=Command(argv=("python", "r"), exit_code=-6, seconds=0.5),
    log="9" * 64,
)
FAILED = ToolchainError("export failed: Unsupported", stage="export", cause="Unsupported", log="8" * 64)


def every_kind(request: Request) -> list[CellResult]:
    return [
        passed_cell(request),
        without_debug_program(request),
        up_to_lower(request, "execute", ABORT),
        up_to_lower(request, "deploy", DeviceError("unplugged")),
        CellResult(request=request, stage="export", error=FAILED),
        CellResult(request=request, impossible="no fp16 there"),
        CellResult(request=request, stage="export", error=RuntimeError()),
    ]


OUTCOME = CaseOutcome(
    case="add_dtype", operator="add", inputs="float32[2, 3]", state="wrong", why="aten.add.Tensor is introduced",
    stage="compare", targets=("aten.add.Tensor",), delegated_nodes=1, cpu_nodes=0, final_snr_db=3.0, device_snr_db=3.1,
    worst_operator="aten.add.Tensor", introduced_snr_db=3.2, introduced_steps=9.0, introduced_p999_steps=8.5,
    introduced_equal=0.25, executed_on="pixel", simulator_equal=0.5, simulator_steps=2.0,
    simulator_why="begins at aten.add.Tensor (add): 3 of 6 elements differ, by up to 2 steps",
    seconds=1.5, log="7" * 64,
)  # fmt: skip


def collection_cell(request: Request) -> CellResult:
    skipped = CaseOutcome(case="add_edge", operator="add", inputs="", state="not_exported", why="skipped")
    return CellResult(request=request, stage="lower", cases=(OUTCOME, skipped), case_logs=(blob("7"),))


def two_methods_cell(request: Request, *, decode: str = "6", **changes: Any) -> CellResult:
    """A cell with the methods `encode` and `decode`. `decode`: the letter of its outputs. `changes`: in its record."""

    def lowered(name: str, **changes: Any) -> LoweredMethod:
        exported = replace(EXPORTED_METHOD, method=name)
        return replace(LOWERED_METHOD, quantized=replace(QUANTIZED_METHOD, exported=exported), **changes)

    program = replace(LOWERED, methods=(lowered("encode"), lowered("decode", **changes)))
    captured = (CAPTURED_METHOD, replace(CAPTURED_METHOD, outputs=blob(decode)))
    operators = tuple(replace(row, operator=replace(row.operator, method="encode")) for row in COMPARISON.operators)
    return passed_cell(
        request, exported=program.quantized.exported, quantized=program.quantized, lowered=program,
        capture=replace(CAPTURE, methods=captured), comparison=replace(COMPARISON, operators=operators),
    )  # fmt: skip
