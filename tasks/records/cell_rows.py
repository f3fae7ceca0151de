"""The rows about a cell as a whole: its outcome, its programs, its calls and its history. Every field is a column."""

from dataclasses import dataclass

from qnnsweep.tasks.records.comparison import IoCheck
from qnnsweep.tasks.records.hints import Bytes, Decibels, Milliseconds, Seconds, Share
from qnnsweep.tasks.records.launches import Command
from qnnsweep.tasks.records.program import ProgramCheck
from qnnsweep.tasks.records.stages import Toolchain
from qnnsweep.tasks.records.vocabulary import (
    Cause,
    Difference,
    Outcome,
    Rung,
    SampleRole,
    TimedOn,
    TrendVerdict,
    Verdict,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellIdentity:
    """The first columns of every row: the run, and the names that identify the row's cell."""

    run_id: str
    """The run's id: the UTC time of its start, then random digits, so that ids sort by time."""
    model: str | None
    """The model's name in the configuration."""
    scheme: str | None
    """The quantization scheme's name in the configuration."""
    soc: str | None
    """The SoC's name in the configuration."""
    device: str | None
    """The device that ran the cell. If the cell reached no device: the requested device or farm."""
    backend: str | None
    """The backend's name in the configuration."""
    toolchain: str | None
    """The toolchain's name in the configuration. `default` is the toolchain of the Python environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finals:
    """A cell's final outputs on the device, summarized over all outputs and samples.

    The columns `_low` and `_high` are the bounds of a 95 % interval: how far the figure would vary with other samples.
    They are null with fewer than two samples.
    """

    final_difference: Difference | None
    """How the final outputs differ from those of eager fp32."""
    final_snr_db: Decibels | None
    """Lowest SNR of any final output of any sample, against eager fp32; null unless `final_difference` is finite. Of an
    output, the SNR that `tolerance.headline` names counts; outputs of integers have none. The more samples there are,
    the lower is the lowest SNR: compare it only between cells with equal `samples`."""
    mean_snr_db: Decibels | None
    """SNR of the mean noise: the noise-to-signal ratio of each sample's worst output against eager fp32, averaged over
    the samples, in dB. Does not depend on the number of samples; null unless `final_difference` is finite."""
    mean_snr_db_low: Decibels | None
    """Lower bound of `mean_snr_db`, by the percentile bootstrap (Efron 1979)."""
    mean_snr_db_high: Decibels | None
    """Upper bound of `mean_snr_db`, by the percentile bootstrap (Efron 1979); also null if this bound is infinite."""
    device_difference: Difference | None
    """How the final outputs differ from those of the rung designed; null if the host cannot compute that rung."""
    device_snr_db: Decibels | None
    """Lowest SNR of any final output of any sample, against the rung designed; null unless `device_difference` is
    finite. It shows what the compiler and the hardware add to the rounding that the lowering recorded."""
    final_cosine: float | None
    """Lowest cosine between a final output and the same output of eager fp32, of the outputs that have a cosine."""
    final_max_abs: float | None
    """Largest absolute error of the final outputs, in the unit of the outputs."""
    top1_agreement: Share | None
    """Share of samples with the same largest element on the device and in eager fp32; null for non-classifiers. Of an
    output with several rows, every row counts: a batch is not flattened."""
    top1_agreement_low: Share | None
    """Lower bound of `top1_agreement`, by the score interval (Wilson 1927)."""
    top1_agreement_high: Share | None
    """Upper bound of `top1_agreement`, by the score interval (Wilson 1927)."""
    accuracy: Share | None
    """Share of labelled samples that the device classifies correctly; null without labels."""
    accuracy_low: Share | None
    """Lower bound of `accuracy`, by the score interval (Wilson 1927)."""
    accuracy_high: Share | None
    """Upper bound of `accuracy`, by the score interval (Wilson 1927)."""
    accuracy_eager: Share | None
    """Share of labelled samples that eager fp32 classifies correctly; null without labels."""
    kl_divergence_nats: float | None = None
    """Mean KL divergence of the probabilities of the next token from those of eager PyTorch, over all tokens; null if
    no scores of tokens were compared. The table `scores` has its interval, and other statistics."""
    perplexity_ratio: float | None = None
    """Perplexity of the texts of the samples on the device, divided by that in eager PyTorch; null without texts."""
    centred_snr_db: Decibels | None = None
    """Lowest SNR about the mean of each channel of any final output of any sample: without the part of an output that
    is the same everywhere, which `final_snr_db` counts as signal."""
    row_snr_db: Decibels | None = None
    """Lowest SNR of any row, a slice along the last axis, of any final output of any sample."""
    row_top1_agreement: Share | None = None
    """Share of rows, of all samples, with the same largest element as in eager fp32: of the output where it is lowest,
    whether or not the model is a classifier."""
    equal_elements: Share | None = None
    """Share of elements, of all samples, that equal those of eager fp32: of the output of integers, indices or booleans
    where it is lowest; null without such an output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits that decide whether a cell is out of tolerance. A limit is null if the value is not judged."""

    final_snr_db_limit: Decibels | None
    """The least `final_snr_db` within the tolerance."""
    top1_agreement_limit: Share | None
    """The least `top1_agreement` within the tolerance; null for random weights, whose scores are nearly equal."""
    kl_divergence_nats_limit: float | None = None
    """The largest `kl_divergence_nats` within the tolerance."""
    perplexity_ratio_limit: float | None = None
    """The largest `perplexity_ratio` within the tolerance."""
    equal_elements_limit: Share | None = None
    """The least `equal_elements` within the tolerance; null for random weights."""
    operators_introduced_limit: int | None
    """The most operators that may introduce error, requantized tensors included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputDigests:
    """The digests of a cell's inputs."""

    model_digest: str | None
    """Digest of the model's configuration, code and files."""
    scheme_digest: str
    """Digest of the scheme's configuration."""
    soc_digest: str
    """Digest of the SoC's configuration."""
    request_digest: str
    """Digest of the configuration of the measurement, of the tolerances and of the backend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRow:
    """One row per planned cell: outcome, reason, sizes, delegation, seconds, worst SNR, top-1 agreement, toolchain
    versions."""

    cell: CellIdentity
    stage: str | None
    """The last stage that was started; null if no stage was started."""
    outcome: Outcome
    """How the cell ended."""
    error_type: str | None
    """The class of the error that ended the cell."""
    error: str | None
    """The message of the error that ended the cell."""
    reason: str | None
    """Why the cell is impossible, not comparable with the model or out of tolerance, or lacks operators or cycles."""
    diagnosis: str
    """What the accuracy is, what costs most of it, and how good the device itself is, in one or two sentences."""
    weights: str | None
    """Where the weights come from: pretrained, trained, random, unstated, or the model's own `weights_origin`."""
    samples_origin: str | None
    """Where the samples come from: files, and how they were prepared and divided, or random numbers; null if the data
    source does not say it."""
    export_s: Seconds | None
    """Duration of the export. All cells of the model share one export."""
    quantize_s: Seconds | None
    """Duration of the quantization. All cells of the model and scheme share one quantization."""
    edge_s: Seconds | None
    """Duration of the lowering to the edge graph. SoCs that were lowered together share one edge graph."""
    lower_s: Seconds | None
    """Duration of the rest of the lowering, for this SoC."""
    execute_s: Seconds | None
    """Total run time of the runner for this cell, over all its starts."""
    measured_run: str | None
    """The run that measured the cell. If the capture was reused, it is an earlier run."""
    sent_bytes: Bytes | None
    """Bytes sent to the device for this cell."""
    outputs_sha256: str | None
    """Digest of the final outputs of all methods. Cells with the same digest have the same outputs, bit by bit."""
    pte_bytes: Bytes | None
    """Size of the shipping program."""
    debug_pte_bytes: Bytes | None
    """Size of the debug program."""
    delegated_nodes: int | None
    """Number of nodes of the graph that the delegate runs."""
    non_delegated_nodes: int | None
    """Number of nodes of the graph that stay on the CPU."""
    delegated_subgraphs: int | None
    """Number of subgraphs that the delegate runs."""
    spill_bytes: Bytes | None
    """Bytes that all subgraphs move to DRAM because the NPU's own memory is too small, by the compiler's count."""
    fill_bytes: Bytes | None
    """Bytes that all subgraphs read back from DRAM into the NPU's own memory, by the compiler's count."""
    write_total_bytes: Bytes | None
    """Bytes that all subgraphs write to DRAM in total, by the compiler's count."""
    read_total_bytes: Bytes | None
    """Bytes that all subgraphs read from DRAM in total, by the compiler's count."""
    program_soc: str | None
    """The SoC that is named in the bytes of the shipping program."""
    program_arch: str | None
    """The architecture that is named in the bytes of the shipping program."""
    program_qnn: str | None
    """The QNN build that is named in the bytes of the shipping program."""
    operators_total: int | None
    """Number of comparisons to make: the number of operators multiplied by the number of captured samples."""
    operators_compared: int | None
    """Number of comparisons, out of `operators_total`, that resulted in a gap."""
    samples: int | None
    """Number of evaluation samples, of all methods together."""
    finals: Finals | None
    worst_sample: int | None
    """The evaluation sample that has the lowest `final_snr_db`, or an infinite difference. The diagnosis and the
    columns of the worst operator are about this sample; null if all outputs equal those of eager fp32."""
    worst_sample_name: str | None
    """The name of the worst sample."""
    worst_final_output: str | None
    """The final output of the worst sample that has the lowest SNR. With several methods, its name begins with that of
    the method to which the sample belongs."""
    sample_role: SampleRole | None
    """Why the operators of the worst sample are captured; null if they are not."""
    limits: Limits
    missed_limits: tuple[str, ...]
    """The columns whose values are beyond their limits."""
    latency_p50_ms: Milliseconds | None
    """The shipping program's mean inference time on one sample: the median over all samples."""
    device_id: str | None = None
    """Digest of the serial number of the device that ran the cell; null if the device reports none. A phone or board
    that takes the place of another one, under the same name, starts new series."""
    timed_on: TimedOn | None
    """What ran the program while `latency_p50_ms` was measured."""
    equal_tensors: int | None
    """Number of tensors, inside the delegates and of the final outputs, that ONNX Runtime returned too, equal byte by
    byte; null unless `measure.second_runtime` asked for it."""
    observer_effect: Difference | None
    """How the debug program's final outputs differ from those of the shipping program; null without debug program."""
    observer_effect_snr_db: Decibels | None
    """Lowest SNR of the debug program's final outputs against those of the shipping program; null unless
    `observer_effect` is finite."""
    worst_rung: Rung | None
    """The rung that adds most noise to the final outputs, on the path exported, lowered, edge, designed, device. If
    the host cannot compute a rung, the noise of that rung is counted at the next one."""
    operators_introduced: int | None
    """Number of operators that introduce error."""
    operators_masked: int | None
    """Number of operators with elements that no reader uses, which are compared without these elements."""
    worst_operator: str | None
    """The operator to examine first: the first one of the worst final output's budget that has a tenth of the error."""
    worst_operator_verdict: Verdict | None
    """The verdict on the worst operator."""
    worst_operator_cause: Cause | None
    """What causes the error of the worst operator; null if its effect on the final outputs is not known."""
    worst_operator_introduced_snr_db: Decibels | None
    """SNR of the worst operator on the device, against the reference operator computed from the device's inputs."""
    worst_operator_effect_snr_db: Decibels | None
    """SNR of the final output if the worst operator's error by this cause were the only error."""
    toolchain: Toolchain | None
    log: str | None
    """Digest of a log: the log of the failed call or, if there is no such log, the log of the last toolchain call."""
    started: str | None
    """When the run started, in UTC and ISO 8601, such as 2026-11-21T22:00:00+00:00: `pandas.to_datetime` reads it."""
    verb: str
    """The command that made the run: run, recompare, repair or bisect; search for a `run` that searched."""
    farm: str | None
    """The farm that the device belongs to; null if it belongs to no farm."""
    digests: InputDigests
    settings: tuple[str, ...]
    """Every key of these inputs that has a value, as an override, such as `model.calibration.count=64`; a secret is
    `***`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegationRow:
    """One row per operator type: how many of its nodes run on the NPU, how many stay on the CPU, and why the compiler
    refused nodes."""

    cell: CellIdentity
    method: str | None = None
    """The method that has the nodes; null for a model with one method."""
    operator: str
    """The operator type."""
    occurrences_delegated: int
    """Number of nodes of this operator type that the delegate runs."""
    occurrences_not_delegated: int
    """Number of nodes of this operator type that stay on the CPU."""
    refusals: tuple[str, ...]
    """The compiler's messages about the nodes that it refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """One row per check of a compiled program: the requested value, the value that was read from the program's bytes,
    and whether these two values agree."""

    cell: CellIdentity
    check: ProgramCheck


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRow:
    """One row per possible mistake at the program's inputs or outputs: another order, axes, type or units, a dead part,
    an output that is not the value of its producer; and whether the device's outputs show this mistake."""

    cell: CellIdentity
    check: IoCheck


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRow:
    """One row per toolchain call, and per stage of a cell that makes none: its duration and peak memory, by which the
    next sweep schedules its own calls and estimates its end. A call has no device; if it does not depend on the SoC,
    for example, the column `soc` is null too."""

    cell: CellIdentity
    stage: str
    """The stage that made the call: export, quantize, edge, lower, divide, compare, cure; or the stage itself: bundle,
    deploy, execute, collect."""
    seconds: Seconds
    """Duration of the call or of the stage."""
    peak_bytes: Bytes | None
    """Peak resident memory of the call; null for a stage. The process of a lower call is forked from the process of the
    edge call: the memory that both processes share is not counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRow:
    """One row per start of the runner on a device: arguments, exit code, seconds."""

    cell: CellIdentity
    command: Command


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendRow:
    """One row per series of a cell (SNR, top-1, latency, sizes …): the values of the last nights, the verdict on this
    night, the first bad run, and what changed in that run."""

    cell: CellIdentity
    farm: str | None
    """The farm that the device belongs to; null if it belongs to no farm."""
    series: str
    """The series' name: `passed`, `coverage`, `same_token`, or the name of a column of `cells`, `operators` or
    `steps`."""
    operator: str | None
    """The operator that the series is about; null if it is about the whole cell or about a step."""
    unit: str
    """The series' unit."""
    value: float | None
    """The series' value on this night."""
    nights: int
    """Number of nights in the baseline."""
    level: float | None
    """Level of the baseline: the mean of the middle half of its values."""
    noise: float | None
    """Standard deviation of the values in the baseline."""
    floor: float | None
    """The smallest change that can be a regression or an improvement, in the series' unit."""
    verdict: TrendVerdict
    """The verdict on this night."""
    first_bad_run: str | None
    """The run in which the regression began, as far as the values show it; null if the series is not bad on this
    night."""
    changed: tuple[str, ...]
    """What differs between the last good and the first bad night."""
    runs: tuple[str, ...]
    """The runs of the last nights, oldest first. The last of them is the run of this night."""
    values: tuple[float | None, ...]
    """The series' value in each run of the column `runs`."""
    step: str | None
    """The step that the series is about, such as `step 3 (decode) of "prompt 0"`; null if it is about the whole cell or
    about an operator."""
