"""The rows about parts of a cell: its operators, outputs, timed events and modules. A field is a column."""

from dataclasses import dataclass

from tasks.records.cell_rows import CellIdentity
from tasks.records.comparison import Gap, MetricValue, ModuleTime, OutputComparison, Spread
from tasks.records.hints import Decibels, Steps
from tasks.records.vocabulary import EventKind, OperatorStatus, ProgramName, Reference, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRow:
    """An operator of the edge graph, a sample and one of `measure.references`: debug handle, module path, shape, grid,
    status, total and introduced gap, verdict."""

    cell: CellIdentity
    operator_index: int | None
    """Position in the edge graph; null for another reference's node that is no operator's counterpart."""
    operator: str
    """The node's name in the edge graph."""
    target: str
    """What the node calls."""
    debug_handle: int | None
    """With `output_index` the operator's only name on the device."""
    output_index: int
    """Which output of a node that has several."""
    module_path: str
    """The module of the model's hierarchy that the operator comes from."""
    stack_trace: str
    """The lines of the model's source that called it."""
    source_nodes: tuple[str, ...]
    """The operator's counterpart in that row's reference; for `edge`, the nodes that torch traced."""
    shape: tuple[int, ...] | None
    """Shape of the value in PyTorch's layout; null for a tuple."""
    dtype: str | None
    """Element type of the value."""
    scale: tuple[float, ...] | None
    """Scale of the device's grid, one per channel or one in all; null where the value has no grid."""
    zero_point: tuple[int, ...] | None
    """Zero point of the device's grid, likewise."""
    axis_order: tuple[int, ...] | None
    """The permutation from PyTorch's layout to the device's."""
    delegated: bool
    """Whether the delegate runs the operator."""
    subgraph: int | None
    """The delegated subgraph; null on the CPU."""
    reference: Reference
    """The graph that the operator is compared with."""
    sample: int
    """The evaluation sample."""
    status: OperatorStatus
    """Whether the operator was compared, and if not, why."""
    nonfinite_actual: int
    """Infinities and NaNs in the device's value."""
    nonfinite_reference: int
    """Infinities and NaNs in the reference's value."""
    masked_elements: int
    """Elements that differ and that no reader uses."""
    masked_by: tuple[str, ...]
    """The readers that discard them."""
    gap: Gap
    introduced_mse: float | None
    """Mean squared error against the reference operator on the device's own inputs."""
    introduced_snr_db: Decibels | None
    """SNR, likewise."""
    introduced_max_abs: float | None
    """Largest absolute error, likewise."""
    introduced_steps: Steps | None
    """Largest absolute error, likewise."""
    introduced_spans: tuple[str, ...]
    """Operators before it that the device did not log, so that their error is in these numbers too."""
    effect_snr_db: Decibels | None
    """SNR of the final outputs with the introduced error alone."""
    verdict: Verdict
    """Where the error comes from."""
    why: str | None
    """Why the operator could not be computed again on the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputRow:
    """A final output, a sample and a rung (`exported`, `quantized`, `edge` on the host, `device`), against eager fp32
    and the rung before."""

    cell: CellIdentity
    comparison: OutputComparison


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRow:
    """A timed event of a program's own log, over all inferences: µs, or an operator's cycles inside the NPU."""

    cell: CellIdentity
    program: ProgramName
    """The program whose log it is, shipping or profile."""
    same_outputs: bool
    """Whether that program's final outputs equal the shipping program's bit by bit."""
    event_block: str
    """The log's name for the block of the event."""
    event: str
    """The log's name for the event."""
    kind: EventKind
    """What the event covers."""
    node: str | None
    """The delegate's name for the operator."""
    instruction: int | None
    """The instruction of the program that the event belongs to."""
    unit: str
    """What is counted: us, cycles, or what the delegate names."""
    spread: Spread
    raw: tuple[float, ...]
    """Every count."""
    samples: tuple[int, ...]
    """The evaluation sample of each count; empty for events of loading."""
    debug_handle: int | None
    """The operator's debug handle, where there is exactly one."""
    debug_handles: tuple[int, ...]
    """The debug handles of all operators that the event covers."""
    operators: tuple[str, ...]
    """The names of these operators."""
    op_types: tuple[str, ...]
    """What each of them calls."""
    module_paths: tuple[str, ...]
    """The module of each."""
    stack_traces: tuple[str, ...]
    """The source lines of each."""
    delegate: bool
    """Whether the event belongs to a delegate."""
    delegate_backend: str | None
    """The delegate's own name."""
    subgraph: int | None
    """The delegated subgraph; null on the CPU."""
    counted_in: tuple[str, ...]
    """For an operator without cycles of its own, the nodes that its work is counted in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """A module of the model's hierarchy: the time or the cycles per inference of all that is inside it."""

    cell: CellIdentity
    time: ModuleTime


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRow:
    """A tensor, a sample and one of `measure.metrics`: the value of that metric."""

    cell: CellIdentity
    value: MetricValue
