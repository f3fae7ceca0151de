"""The rows about parts of a cell: its operators, outputs, timed events and modules. Every field is a column."""

from dataclasses import dataclass

from qnnsweep.tasks.records.cell_rows import CellIdentity
from qnnsweep.tasks.records.comparison import (
    ErrorParts,
    ErrorShare,
    Gap,
    MetricValue,
    ModuleTime,
    OutputComparison,
    Spread,
)
from qnnsweep.tasks.records.error_detail import ErrorDetail
from qnnsweep.tasks.records.hints import Decibels
from qnnsweep.tasks.records.steps import ScoreStatistic, StepComparison
from qnnsweep.tasks.records.vocabulary import EventKind, OperatorStatus, ProgramName, Reference, SampleRole, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRow:
    """One row per operator of the edge graph, sample and reference (`measure.references`): debug handle, module path,
    shape, grid, status, total and introduced gap, verdict."""

    cell: CellIdentity
    method: str | None = None
    """The method that has the operator; null for a model with one method."""
    operator_index: int | None
    """The operator's position in the edge graph; null for a requantized value, and if the status is `no_operator`.
    Operators are numbered through all methods of a program."""
    operator: str
    """The node's name in the edge graph or, if the status is `no_operator`, in the reference graph of the row. If a
    delegate converts an operator's value to another grid for some readers, the requantized value has a row of its own,
    whose name is that of the operator with the readers: `add (requantized for matmul)`. With several methods, the name
    begins with the method: `decode/add`."""
    target: str
    """The function that the node calls."""
    debug_handle: int | None
    """The operator's debug handle. On the device, only this handle and `output_index` identify the operator."""
    output_index: int
    """Position of the row's value among the outputs of the node."""
    module_path: str
    """The module of the model's hierarchy that the operator comes from."""
    stack_trace: str
    """The lines of the model's source that called the operator."""
    source_nodes: tuple[str, ...]
    """The nodes of the row's reference that are the operator's counterpart; for `edge`, the nodes that torch traced."""
    reads: tuple[int, ...]
    """The `operator_index` of every operator whose value the operator reads."""
    shape: tuple[int, ...] | None
    """Shape of the value in PyTorch's layout; null if the value is a tuple."""
    dtype: str | None
    """Element type of the value."""
    scale: tuple[float, ...] | None
    """Scale of the device's grid, one per channel or one for the tensor; null where the value has no grid."""
    zero_point: tuple[int, ...] | None
    """Zero point of the device's grid, one per scale; null where the value has no grid."""
    axis_order: tuple[int, ...] | None
    """The permutation of axes from PyTorch's layout to the device's layout."""
    delegated: bool
    """Whether the delegate runs the operator."""
    subgraph: int | None
    """Number of the delegated subgraph that contains the operator; null for an operator on the CPU."""
    reference: Reference
    """The graph that the operator is compared with."""
    sample: int
    """The evaluation sample."""
    sample_role: SampleRole
    """Why the operators of this sample are captured."""
    status: OperatorStatus
    """Whether the operator was compared, and if not, why."""
    nonfinite_actual: int
    """Number of infinities and NaNs in the device's value."""
    nonfinite_reference: int
    """Number of infinities and NaNs in the reference's value."""
    masked_elements: int
    """Number of elements that differ and that no reader uses."""
    masked_by: tuple[str, ...]
    """The operators that read the value and discard some of its elements."""
    gap: Gap
    parts: ErrorParts
    introduced_spans: tuple[str, ...]
    """Earlier operators whose logged value was not used, because there is none or because the compiler fused them with
    this operator. The introduced error includes their error."""
    effect_snr_db: Decibels | None
    """Lowest SNR of a final output of this sample if the introduced error were the only error."""
    verdict: Verdict
    """Where the error comes from."""
    why: str | None
    """Why the operator could not be computed again on the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputRow:
    """One row per final output, sample and rung (`exported`, `lowered`, `edge` and `designed` on the host, then
    `device`; beside this path, `quantized` on the host): the comparison with eager fp32 and with the previous rung."""

    cell: CellIdentity
    comparison: OutputComparison


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRow:
    """One row per timed event in the log of a program: the event's times over all inferences. Times are in µs or, for
    an operator inside the NPU, in cycles."""

    cell: CellIdentity
    method: str | None = None
    """The method that was run; null for a model with one method."""
    program: ProgramName
    """The program, shipping or profile, whose log has the event."""
    same_outputs: bool
    """Whether the program's final outputs equal the shipping program's bit by bit."""
    event_block: str
    """The name of the event's block in the log."""
    event: str
    """The name of the event in the log."""
    kind: EventKind
    """What the event covers."""
    node: str | None
    """The delegate's name for the event's operator."""
    instruction: int | None
    """Number of the program's instruction that the event belongs to."""
    unit: str
    """The unit of the counts: us, cycles, ticks of unknown length, or the unit that the delegate names."""
    spread: Spread
    raw: tuple[float, ...]
    """All counts of the event, in the unit of the column `unit`."""
    samples: tuple[int, ...]
    """The evaluation sample of each count; empty for events of loading."""
    debug_handle: int | None
    """The debug handle of the event's operator, if the event has exactly one debug handle."""
    debug_handles: tuple[int, ...]
    """The debug handles of all operators that the event covers."""
    operators: tuple[str, ...]
    """The names of the operators that the event covers."""
    op_types: tuple[str, ...]
    """The function that each operator of the event calls."""
    module_paths: tuple[str, ...]
    """The module of each operator of the event."""
    stack_traces: tuple[str, ...]
    """The source lines of each operator of the event."""
    delegate: bool
    """Whether the event belongs to a delegate."""
    delegate_backend: str | None
    """The delegate's name, for example `QnnBackend`."""
    subgraph: int | None
    """Number of the delegated subgraph that the event belongs to; null on the CPU."""
    counted_in: tuple[str, ...]
    """For an operator without cycles of its own, the nodes whose cycles include the operator's work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """One row per module of the model's hierarchy: the time or the cycles per inference of everything inside the
    module."""

    cell: CellIdentity
    time: ModuleTime


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetRow:
    """One row per final output and cause of error, in total and per operator: the share of the output's error."""

    cell: CellIdentity
    share: ErrorShare


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """One row per tensor, sample and metric (`measure.metrics`): the value of the metric."""

    cell: CellIdentity
    value: MetricValue


@dataclass(frozen=True, kw_only=True, slots=True)
class DetailRow:
    """One row per operator whose error matters, at most 40 per cell or method: how the error is distributed over the
    steps of the grid, the channels and the plane."""

    cell: CellIdentity
    detail: ErrorDetail


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRow:
    """One row per statistic of a language model's tokens: KL divergence, probabilities, perplexity, with intervals."""

    cell: CellIdentity
    score: ScoreStatistic


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One row per step of a model with states, and sequence: token, and total, introduced and inherited SNR."""

    cell: CellIdentity
    comparison: StepComparison
