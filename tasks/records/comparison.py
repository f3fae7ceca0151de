"""The records of a comparison: gaps, outputs, operators, timed events and metrics."""

from dataclasses import dataclass, field

from qnnsweep.tasks.records.error_detail import ErrorDetail
from qnnsweep.tasks.records.hints import Decibels, Share, Steps
from qnnsweep.tasks.records.io_check import IoCheck
from qnnsweep.tasks.records.lowered import Operator
from qnnsweep.tasks.records.stages import IDENTITY_NEUTRAL
from qnnsweep.tasks.records.steps import ScoreStatistic, StepComparison
from qnnsweep.tasks.records.vocabulary import (
    Cause,
    Difference,
    EventKind,
    OperatorStatus,
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

    method: str | None = None
    """The method that has the output; null for a model with one method."""
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
    why: str | None = None
    """Why the host could not compute the output, or what is special about it."""
    nonfinite_actual: int = 0
    """Number of infinities and NaNs in the output."""
    nonfinite_reference: int = 0
    """Number of infinities and NaNs in the output of eager fp32."""
    gap: Gap
    previous_rung: Rung | None
    """The rung to whose error this rung adds its own, on the path exported, lowered, edge, designed, device. For
    quantized, which is beside this path, it is exported. Null for the first rung."""
    previous_status: OperatorStatus | None = None
    """Whether the output was compared with the previous rung's, and if not, why; null for the first rung."""
    previous_snr_db: Decibels | None
    """SNR against the previous rung's output; null for the first rung, and where `previous_status` is not compared or
    the previous rung's output is all zeros."""
    label: int | None
    """The sample's label."""
    top1_reference: int | None
    """Index of the reference's largest element; null if the model is not a classifier, and for several rows."""
    top1_actual: int | None
    """Index of the output's largest element; null if the model is not a classifier, and for several rows."""
    centred_snr_db: Decibels | None = None
    """SNR about the mean of each channel: the energy of the reference without these means, divided by the energy of the
    error. The means are over all samples, and the channels are along the axis whose means explain most. Null for
    integers and without a difference."""
    row_snr_db: Decibels | None = None
    """Lowest SNR of a row, a slice along the last axis; null for integers and without a difference."""
    rows: int | None = None
    """Number of rows of at least two elements; null for integers."""
    rows_same_top1: int | None = None
    """Number of rows whose largest element is at the same index as the reference's; null for integers."""
    equal_elements: Share | None = None
    """Share of the elements that equal the reference's, for integers, indices and booleans; null for floats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorParts:
    """The error of an operator's value on the device, divided by cause, over the elements that some reader uses.

    The host computes the reference operator on the device's own inputs and rounds its result to the device's grid. The
    error of the result is inherited, that of the rounding is the grid's, and the rest is introduced.
    """

    inherited_snr_db: Decibels | None = None
    """SNR of the reference operator's result on the device's own inputs, before it is rounded to the device's grid."""
    grid_snr_db: Decibels | None = None
    """SNR of the rounding of this result to the device's grid; null for a value without a grid."""
    clipped_elements: int | None = None
    """Number of elements of this result that are beyond the ends of the device's grid."""
    codes_used: int | None = None
    """Number of different quantized values in the device's value."""
    range_used: float | None = None
    """Range of this result divided by the range of the device's grid. Above 1, the result does not fit the grid."""
    least_value: float | None = None
    """Least element of this result and of the value in the edge graph, in the operator's unit; null for a value without
    a grid."""
    largest_value: float | None = None
    """Largest element of this result and of the value in the edge graph, in the operator's unit; null for a value
    without a grid."""
    introduced_mse: float | None = None
    """Mean squared error of the value against the reference operator's result on the device's own inputs."""
    introduced_snr_db: Decibels | None = None
    """SNR of the value against the reference operator's result on the device's own inputs."""
    introduced_channel_snr_db: Decibels | None = None
    """SNR of the channel with the worst introduced error. A channel is a slice along any axis. Its noise is compared
    with its own mean square or, if that is larger, the whole value's."""
    introduced_max_abs: float | None = None
    """Largest absolute introduced error."""
    introduced_equal: Share | None = None
    """Share of the elements that are the host's, code by code: the same quantized value, or the same float."""
    introduced_differing: int | None = None
    """Number of wrong elements, for a value that is not floating point."""
    introduced_steps: Steps | None = None
    """Largest absolute introduced error, in steps of the device's grid."""
    introduced_p999_steps: Steps | None = None
    """99.9th percentile of the absolute introduced errors."""
    introduced_rms_steps: Steps | None = None
    """Root mean square of the introduced errors."""
    introduced_mean_steps: Steps | None = None
    """Mean of the signed introduced errors. A device that rounds to the nearest step has a mean near 0."""
    introduced_mean_steps_error: Steps | None = None
    """Standard error of the mean of the signed introduced errors."""
    introduced_gain: float | None = None
    """Slope of the regression of the value on the right value; null where the right value is constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorComparison:
    """The comparison of an operator on one sample with one reference.

    `gap` is the total gap: the device's value against the value that the reference computes from the model's inputs.
    `parts` divides the error by cause. Elements that no reader of the value uses are left out.
    """

    operator: Operator
    sample: int
    status: OperatorStatus
    gap: Gap
    reference: Reference = "edge"
    nodes: tuple[str, ...] | None = None  # the operator's counterpart in a reference other than `edge`
    nonfinite_actual: int = 0
    nonfinite_reference: int = 0
    parts: ErrorParts = ErrorParts()
    verdict: Verdict = "blind"
    masked_elements: int = 0
    masked_by: tuple[str, ...] = ()  # the readers that discard the masked elements
    spans: tuple[str, ...] = ()  # earlier operators whose logged value was not used: the introduced error has theirs
    why: str | None = None  # why the operator could not be computed again on the host


SIGNIFICANT_SHARE = 0.1
"""The share of an output's error from which a part of it is no detail: it is named, and it counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorShare:
    """The part of a final output's error that one cause has, at one operator or in total, on the worst sample."""

    method: str | None = None
    """The method that has the output; null for a model with one method."""
    output_index: int
    """Position of the final output."""
    output: str
    """The final output's name."""
    sample: int
    """The evaluation sample: the worst one of those that were captured."""
    cause: Cause
    """What causes the error."""
    operator: str | None
    """The operator whose value or weights have the error, or the model's input; null for a total."""
    operator_index: int | None
    """The operator's position in the edge graph; null for an input and for a total."""
    module_path: str | None
    """The module of the model's hierarchy that the operator comes from; null for a total."""
    share: float | None
    """For a total: the part of the error's energy that disappears if the causes are left out one after the other, the
    most useful first; the totals of an output add up to 1. For an operator: energy of the error that the cause alone
    gives the output, divided by the energy of the output's error. Null where the output has no error."""
    share_error: float | None
    """Standard error of a share that was estimated from derivatives; 0 for a share that was measured by a run."""
    alone_snr_db: Decibels | None
    """SNR of the final output if this were the only error; null without an effect, and for `unexplained`."""
    without_snr_db: Decibels | None
    """SNR of the final output without this error; null if no run left it out, or if the error is zero without it."""
    why: str | None = None
    """For `unexplained`: the reason why some effects are not known; null if all are known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BiasUse:
    """The least scales of an operator's weight with which its largest bias fits into 32 bits.

    The step of a bias is the product of the steps of the input's grid and of the weight's grid.
    """

    operator_index: int
    least_scale: float  # with the input's grid
    least_scale_16: float  # with a grid of 16 bits of the same width


@dataclass(frozen=True, kw_only=True, slots=True)
class InputUse:
    """How the samples that may be chosen use the grid of an input of the model."""

    input: str
    least: float
    largest: float
    clipped_elements: int


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
    samples: tuple[int, ...]  # per count, the evaluation sample; empty for loading
    debug_handles: tuple[int, ...]
    operators: tuple[Operator, ...]
    backend: str | None
    subgraph: int | None
    counted_in: tuple[str, ...]  # for an operator without cycles of its own, the nodes whose cycles include it
    method: str | None = None  # None for a model with one method


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTime:
    """The time or the cycles per inference of a module and all modules inside it."""

    method: str | None = None
    """The method that was run; null for a model with one method."""
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

    method: str | None = None
    """The method that has the tensor; null for a model with one method."""
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
    # The times differ from run to run and no later stage reads them, so they are not in the key of a later stage.
    profile: tuple[ProfiledEvent, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)
    observer_effect: Difference | None = None  # debug against shipping program; None if there is no debug program
    observer_effect_snr_db: float | None  # None unless `observer_effect` is `finite`
    metrics: tuple[MetricValue, ...] = ()
    unexpected_events: tuple[str, ...]  # logged tensors that the lowering did not expect
    io_checks: tuple[IoCheck, ...] = ()
    other_references: tuple[OperatorComparison, ...] = ()
    budget: tuple[ErrorShare, ...] = ()  # per sample and final output: the totals of all causes, then operators
    details: tuple[ErrorDetail, ...] = ()  # of the operators whose errors matter, the most important first
    bias_uses: tuple[BiasUse, ...] = ()  # of a quantized scheme's operators with a weight and a bias
    input_uses: tuple[InputUse, ...] = ()  # of the model's inputs that have a grid
    steps: tuple[StepComparison, ...] = ()  # of a model with states, sequence by sequence
    scores: tuple[ScoreStatistic, ...] = ()  # of all tokens of a language model
