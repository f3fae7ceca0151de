"""The records of a comparison: gaps, outputs, operators, timed events, metrics and checks of inputs and outputs."""

from dataclasses import dataclass

from tasks.records.hints import Decibels, Share
from tasks.records.stages import Operator
from tasks.records.vocabulary import (
    EventKind,
    OperatorStatus,
    ProbeSide,
    ProbeStatus,
    ProgramName,
    Reference,
    Rung,
    Verdict,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """The difference of two tensors.

    `mean_abs` and `max_abs` are in the unit of the tensors, and `mse` is in the square of that unit. A number is None
    if it is not defined because the tensors have no elements or all elements of one tensor are zero.
    """

    mse: float | None = None
    """Mean squared error."""
    mean_abs: float | None = None
    """Mean absolute error."""
    max_abs: float | None = None
    """Largest absolute error."""
    snr_db: Decibels | None = None
    """Signal-to-noise ratio; null where the tensors are equal."""
    cosine: float | None = None
    """Cosine of the angle between the tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The distribution of a list of numbers, with linearly interpolated percentiles."""

    count: int
    """Number of values."""
    p10: float
    """10th percentile, in the unit of the row's column `unit`."""
    p50: float
    """Median, in the unit of the row's column `unit`."""
    p90: float
    """90th percentile, in the unit of the row's column `unit`."""
    mean: float
    """Mean, in the unit of the row's column `unit`."""
    minimum: float
    """Least value, in the unit of the row's column `unit`."""
    maximum: float
    """Largest value, in the unit of the row's column `unit`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputComparison:
    """A final output of one sample at one rung, compared with eager fp32 and with the previous rung."""

    rung: Rung
    """The program that computed the output."""
    reference: Reference = "eager"
    """The program whose output this output is compared with."""
    sample: int
    """The evaluation sample."""
    sample_name: str
    """The sample's name."""
    output_index: int
    """Position of the output."""
    output: str
    """The output's name."""
    shape: tuple[int, ...]
    """The output's shape."""
    status: OperatorStatus
    """Whether the output was compared, and if not, why."""
    gap: Gap
    previous_rung: Rung | None
    """The previous rung; null for the first rung."""
    previous_snr_db: Decibels | None
    """SNR against the previous rung's output; null for the first rung, and where both outputs are equal."""
    label: int | None
    """The sample's label."""
    top1_reference: int | None
    """Index of the reference's largest element; null if the model is not a classifier."""
    top1_actual: int | None
    """Index of the output's largest element; null if the model is not a classifier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorComparison:
    """The comparison of an operator on one sample with one reference.

    `gap` is the total gap: the device's value against the value that the reference computes from the model's inputs.
    `introduced` is the introduced gap: the device's value against the value that the reference operator computes from
    the operator's inputs on the device. Elements that no reader of the value uses are left out of both gaps.
    """

    operator: Operator
    sample: int
    status: OperatorStatus
    gap: Gap
    reference: Reference = "edge"
    nodes: tuple[str, ...] | None = None  # the operator's counterpart in a reference other than `edge`
    nonfinite_actual: int = 0
    nonfinite_reference: int = 0
    introduced: Gap = Gap()
    introduced_steps: float | None = None  # the largest introduced error, in steps of the device's grid
    effect_snr_db: float | None = None  # SNR of the final outputs if the introduced error were the only error
    verdict: Verdict = "blind"
    masked_elements: int = 0
    masked_by: tuple[str, ...] = ()  # the readers that discard the masked elements
    spans: tuple[str, ...] = ()  # earlier operators that the device did not log: `introduced` includes their error
    why: str | None = None  # why the operator could not be computed again on the host


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledEvent:
    """A timed event in the log of a program."""

    program: ProgramName  # `shipping` or `profile`
    same_outputs: bool  # whether the program's final outputs equal the shipping program's bit by bit
    event_block: str
    name: str
    kind: EventKind
    node: str | None  # the delegate's name for the operator
    instruction: int | None
    unit: str  # `us`, `cycles`, or the unit that the delegate names
    raw: tuple[float, ...]  # every count of `unit`
    inferences: tuple[int, ...]  # per count, the timed inference; empty for events of loading
    samples: tuple[int, ...]  # per count, the evaluation sample (a test case of `program.bpte`); empty for loading
    debug_handles: tuple[int, ...]
    operators: tuple[Operator, ...]
    backend: str | None
    subgraph: int | None
    counted_in: tuple[str, ...]  # for an operator without cycles of its own, the nodes whose cycles include it


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTime:
    """The time or the cycles per inference of a module and all modules inside it."""

    program: ProgramName
    """The program whose log has the time: shipping or profile."""
    unit: str
    """What is counted: us or cycles."""
    module_path: str
    """The module; empty for the whole model."""
    depth: int
    """The number of modules that contain this module."""
    operators: tuple[str, ...]
    """The names of the operators inside the module that have an event, in the order of the log."""
    spread: Spread | None
    own_mean: float | None
    """The part of the mean that belongs to the module itself, not to a module inside it."""
    share: Share | None
    """The mean divided by the mean of the whole model; null where the whole model's mean is zero."""
    counted_in: str | None
    """For a module without a time of its own, the innermost module around it that has a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricValue:
    """The value of one metric for one tensor."""

    operator: str | None
    """The operator; null for a final output."""
    operator_index: int | None
    """The operator's position in the edge graph."""
    debug_handle: int | None
    """The operator's debug handle."""
    output_index: int
    """Position of the tensor among the outputs of the operator or, for a final output, of the model."""
    sample: int
    """The evaluation sample."""
    rung: Rung
    """The program that computed the tensor."""
    reference: Reference
    """What the tensor is compared with."""
    metric: str
    """The metric's name, as it was requested."""
    value: float | None
    """The metric's value; null where it is not defined."""
    problem: str | None
    """Why a user-defined metric returned no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IoCheck:
    """The result of a check for one possible mistake at the program's inputs or outputs.

    The mistake was made if the model with this mistake explains the device's outputs clearly better than the model
    without it. A relative error is the squared error of the device's outputs against the model's outputs, divided by
    the energy of the model's outputs. A relative error of 0.01 corresponds to an SNR of 20 dB.
    """

    side: ProbeSide
    """The side of the program on which the mistake would be made: input or output."""
    mistake: str
    """A description of the mistake."""
    sample: int
    """The evaluation sample that shows most clearly whether the mistake was made."""
    status: ProbeStatus
    """Whether the mistake was made."""
    relative_error: float | None
    """Squared error against the model's outputs, divided by the energy of these outputs; null if not finite."""
    relative_error_mistaken: float | None
    """Squared error against the outputs of the model with the mistake, divided by the energy of these outputs; null if
    not finite."""
    detail: str | None
    """What exactly explains the device's outputs, or why the model cannot be run on the mistaken inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The comparison of a cell's capture with its references.

    `other_references` has entries for each sample and each requested reference other than the edge graph: first every
    operator with its total gap against the reference, then the nodes of the reference that are no operator's
    counterpart.

    `requantized` has an entry for each sample and each `RequantizedTensor`. Its total gap is against the value of the
    source in the edge graph. Its introduced gap is against the source's value on the device, rounded to the other grid.
    """

    outputs: tuple[OutputComparison, ...]
    operators: tuple[OperatorComparison, ...]  # against the edge graph
    requantized: tuple[OperatorComparison, ...] = ()  # values that a delegate converted to another grid
    profile: tuple[ProfiledEvent, ...]
    observer_effect_snr_db: float | None  # debug against shipping program; None if equal bit by bit, or not measured
    metrics: tuple[MetricValue, ...] = ()
    unexpected_events: tuple[str, ...]  # logged tensors that the lowering did not expect
    io_checks: tuple[IoCheck, ...] = ()
    other_references: tuple[OperatorComparison, ...] = ()
