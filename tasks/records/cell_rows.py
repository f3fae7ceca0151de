"""The rows about a cell as a whole: its outcome, its programs, its calls and its history. A field is a column."""

from dataclasses import dataclass

from tasks.records.comparison import IoCheck
from tasks.records.hints import Bytes, Decibels, Milliseconds, Seconds, Share
from tasks.records.program import ProgramCheck
from tasks.records.stages import Command, Toolchain
from tasks.records.vocabulary import Outcome, Rung, TrendVerdict, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class CellIdentity:
    """What every row begins with: the run, and the names of the cell that the row is about."""

    run_id: str
    """The run: its start in UTC and random digits, so that the ids sort by time."""
    model: str | None
    """The model's name in the configuration, as are those of scheme, SoC and backend."""
    scheme: str | None
    """The quantization scheme."""
    soc: str | None
    """The SoC."""
    device: str | None
    """The device that ran the cell; of a cell that reached none, the one or the farm that was requested."""
    backend: str | None
    """The backend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finals:
    """A cell's final outputs on the device, summarized over all outputs and samples."""

    final_snr_db: Decibels | None
    """SNR of the worst final output of the worst sample against eager fp32; null when all are exact."""
    final_cosine: float | None
    """Least cosine of the final outputs and eager fp32's."""
    final_max_abs: float | None
    """Largest absolute error of the final outputs, in their own unit."""
    top1_agreement: Share | None
    """Samples for which device and eager fp32 have the same largest element; null without a classifier."""
    accuracy: Share | None
    """Labelled samples that the device classifies correctly; null without labels."""
    accuracy_eager: Share | None
    """Labelled samples that eager fp32 classifies correctly; null without labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRow:
    """A planned cell: outcome, reason, sizes, delegation, seconds, worst SNR, top-1 agreement, toolchain versions."""

    cell: CellIdentity
    stage: str | None
    """The last stage that was started; null when none was."""
    outcome: Outcome
    """What became of the cell."""
    error_type: str | None
    """The class of the error that ended the cell."""
    error: str | None
    """The message of that error."""
    reason: str | None
    """Why the cell is impossible, out of tolerance or without operators."""
    weights: str | None
    """Where the model's weights come from: pretrained, trained, random, unstated, or the model's own word."""
    export_s: Seconds | None
    """Duration of the export, which the model's cells share."""
    quantize_s: Seconds | None
    """Duration of the quantization, which the cells of a model and scheme share."""
    edge_s: Seconds | None
    """Duration of the lowering to the edge graph, which the SoCs that were lowered together share."""
    lower_s: Seconds | None
    """Duration of the rest of the lowering, for this SoC."""
    execute_s: Seconds | None
    """Duration of all starts of the runner."""
    measured_run: str | None
    """The run that measured the cell: an earlier one where its capture was reused."""
    sent_bytes: Bytes | None
    """Sent to the device for this cell."""
    outputs_sha256: str | None
    """Digest of the final outputs: equal for cells whose outputs are equal bit by bit."""
    pte_bytes: Bytes | None
    """Size of the shipping program."""
    debug_pte_bytes: Bytes | None
    """Size of the debug program."""
    delegated_nodes: int | None
    """Nodes of the graph that the delegate runs."""
    non_delegated_nodes: int | None
    """Nodes of the graph that stay on the CPU."""
    delegated_subgraphs: int | None
    """Subgraphs that the delegate runs."""
    spill_bytes: Bytes | None
    """Written from the NPU's own memory to the DRAM for lack of space, by the compiler's count, over all subgraphs."""
    fill_bytes: Bytes | None
    """Read back into the NPU's own memory, likewise."""
    write_total_bytes: Bytes | None
    """Written to the DRAM in all, likewise."""
    read_total_bytes: Bytes | None
    """Read from the DRAM in all, likewise."""
    program_soc: str | None
    """The SoC that the shipping program's own bytes name."""
    program_arch: str | None
    """The architecture that they name."""
    program_qnn: str | None
    """The QNN build that they name."""
    operators_total: int | None
    """Operators times captured samples."""
    operators_compared: int | None
    """Those of them that have a gap."""
    samples: int | None
    """Evaluation samples."""
    finals: Finals | None
    latency_p50_ms: Milliseconds | None
    """Median over the samples of the shipping program's mean inference."""
    observer_effect_snr_db: Decibels | None
    """SNR of the debug program's final outputs against the shipping program's; null when they are equal."""
    worst_rung: Rung | None
    """The rung at which the final outputs lose most."""
    operators_introduced: int | None
    """Operators that introduce error."""
    operators_masked: int | None
    """Operators that differ only in elements that no reader uses."""
    worst_operator: str | None
    """Of the operators that introduce error, the one that changes the final outputs most."""
    worst_operator_verdict: Verdict | None
    """Its verdict."""
    worst_operator_introduced_snr_db: Decibels | None
    """SNR of the error that it introduces."""
    worst_operator_effect_snr_db: Decibels | None
    """SNR of the final outputs with that error alone."""
    toolchain: Toolchain | None
    log: str | None
    """Digest of the log of the call that failed, else of the toolchain's last call."""
    verb: str
    """The command that made the run: run or recompare."""
    farm: str | None
    """The farm that the device belongs to; null without one."""
    model_digest: str | None
    """Digest of the model's configuration and of the code and files behind it."""
    scheme_digest: str
    """Digest of the scheme's configuration."""
    soc_digest: str
    """Digest of the SoC's configuration."""
    request_digest: str
    """Digest of what was measured and tolerated, and of the backend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelegationRow:
    """An operator type: how often it runs on the NPU, how often on the CPU, and the compiler's reasons."""

    cell: CellIdentity
    operator: str
    """The operator type."""
    occurrences_delegated: int
    """Nodes of that type that the delegate runs."""
    occurrences_not_delegated: int
    """Nodes of that type that stay on the CPU."""
    refusals: tuple[str, ...]
    """What the compiler printed about those that it refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """A check of a compiled program: the request, the fact in the program's own bytes, and whether the two agree."""

    cell: CellIdentity
    check: ProgramCheck


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRow:
    """A mistake of order, axes, type or units that could be made at the program's inputs or outputs, and whether it
    explains the device's outputs better than the model does."""

    cell: CellIdentity
    check: IoCheck


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRow:
    """A toolchain call: seconds and peak memory, from which the next sweep plans; names on which the call does not
    depend are null."""

    cell: CellIdentity
    stage: str
    """The stage that made the call: export, quantize, edge, lower, compare."""
    seconds: Seconds
    """Duration of the call."""
    peak_bytes: Bytes
    """Peak resident memory; of lower without that of the edge program from which it was forked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandRow:
    """A start of the runner on a device: arguments, exit code, seconds."""

    cell: CellIdentity
    command: Command


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendRow:
    """A series of a cell (SNR, top-1, latency, sizes …): its last nights, the verdict on this one, the run since which
    it is bad, and what changed then."""

    cell: CellIdentity
    farm: str | None
    """The farm that the device belongs to; null without one."""
    series: str
    """The series: a column of `cells` or `operators`, `passed` or `coverage`."""
    operator: str | None
    """The operator; null for a series of the cell."""
    unit: str
    """The series' unit."""
    value: float | None
    """The value of this night."""
    nights: int
    """Nights in the baseline."""
    median: float | None
    """Median of the baseline."""
    mad: float | None
    """Median absolute deviation of the baseline."""
    floor: float | None
    """The least change that counts, in the series' unit."""
    verdict: TrendVerdict
    """The verdict on this night."""
    first_bad_run: str | None
    """The run since which the series is bad."""
    changed: tuple[str, ...]
    """What differs between the last good and the first bad night."""
    runs: tuple[str, ...]
    """The nights up to this one, oldest first."""
    values: tuple[float | None, ...]
    """The series' value in each of them."""
