"""The records and rows of the operator atlas: small models with few operators, and what the toolchain does with them.

Every field of `CaseOutcome` is a column of the table `atlas`.
"""

from dataclasses import dataclass, field

from qnnsweep.tasks.records.cell_rows import CellIdentity
from qnnsweep.tasks.records.hints import Decibels, Seconds, Share, Steps
from qnnsweep.tasks.records.launches import Bundle, Capture
from qnnsweep.tasks.records.lowered import LoweredProgram
from qnnsweep.tasks.records.stages import IDENTITY_NEUTRAL, Blob, TensorSpec
from qnnsweep.tasks.records.vocabulary import CaseEnding, CaseState


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorCase:
    """A small model of a collection. `arguments`: those of the factory and of the data sources, as JSON."""

    name: str  # unique in the collection
    operator: str
    arguments: str
    inputs: tuple[TensorSpec, ...]
    skipped: str | None = None  # why there is no model to measure


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorCases:
    """The cases of a collection, or a part of them."""

    cases: tuple[OperatorCase, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcome:
    """What the toolchain does with a case in one scheme, for one SoC."""

    case: str
    """The case's name, which is unique in its collection."""
    operator: str
    """The operator that the case is about, in the words of the collection."""
    inputs: str
    """Dtypes and shapes of the case's inputs."""
    state: CaseState
    """Whether the operator can be used."""
    why: str | None = None
    """The reason for the state, in the toolchain's words where there are any."""
    stage: str | None = None
    """The last stage that ran; null if the case was skipped."""
    calls: tuple[str, ...] = ()
    """The operator calls of the exported program, each once: the operator with the dtypes and shapes of its tensors."""
    targets: tuple[str, ...] = ()
    """The operators of the case's edge graph, each once."""
    cpu_targets: tuple[str, ...] = ()
    """Those of `targets` that stay on the CPU."""
    delegated_nodes: int | None = None
    """Number of nodes that the delegate runs; null if there is no program."""
    cpu_nodes: int | None = None
    """Number of nodes that stay on the CPU; null if there is no program."""
    final_snr_db: Decibels | None = None
    """Lowest SNR of a final output, against eager fp32; null if the outputs are equal or there are none."""
    device_snr_db: Decibels | None = None
    """Lowest SNR of a final output, against the rung designed; null if the outputs are equal or there are none."""
    worst_operator: str | None = None
    """The operator with the lowest introduced SNR; null if none was compared."""
    introduced_snr_db: Decibels | None = None
    """Introduced SNR of the worst operator; null if it introduces nothing."""
    introduced_steps: Steps | None = None
    """Largest absolute introduced error of the worst operator, in steps of its grid."""
    introduced_p999_steps: Steps | None = None
    """99.9th percentile of the introduced errors of the worst operator: a tolerance that it keeps."""
    introduced_equal: Share | None = None
    """Share of the elements of the worst operator that the model of the arithmetic predicts, code by code."""
    equal_tensors: int | None = None
    """Number of tensors, inside the delegate and of the final outputs, that ONNX Runtime returned too, equal byte by
    byte. Null if ONNX Runtime did not execute the case, and if one of them differs."""
    runtimes_differ: str | None = None
    """What differs between ExecuTorch's runtime and ONNX Runtime, which executed the same compiled graph; null without
    a difference. No operator is at fault, so the state does not depend on it."""
    executed_on: str | None = None
    """The device that executed the case, or failed to; null for this machine's simulator, and if that failed, too."""
    simulator_equal: Share | None = None
    """Share of the elements, of all logged tensors and final outputs, equal to those of this machine's simulator. Null
    if no other device executed the case, or if the simulator did not."""
    simulator_steps: Steps | None = None
    """Largest difference to the simulator, in steps of the grid or of float16; null without such a tensor, and where
    `simulator_equal` is null."""
    simulator_why: str | None = None
    """The operator at which the difference to the simulator begins, or why there is no comparison with it."""
    seconds: Seconds | None = None
    """Duration of all stages of the case; null if the case was skipped."""
    log: str | None = None
    """Digest of the log of the case, in the store; null if the case was skipped."""


NOT_SIMULATED = "the simulator did not execute the case"
"""How `simulator_why` begins if there is nothing with which a device's tensors could be compared."""
LACKS_KERNEL = "ExecuTorch's runtime lacks"
"""What the failure of a case says whose operators on the CPU the simulator of this machine cannot compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcomes:
    """The outcomes of cases that ran in one process, in the order of the cases."""

    outcomes: tuple[CaseOutcome, ...]
    logs: tuple[Blob, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledCase:
    """A case that another device than this machine's simulator executes, or why there is nothing to execute."""

    case: OperatorCase
    outcome: CaseOutcome | None = None  # that of a case without a program
    lowered: LoweredProgram | None = None
    bundle: Bundle | None = None
    simulated: Capture | None = None  # by the simulator of this machine
    not_simulated: str | None = None  # why the simulator did not execute the case
    calls: tuple[str, ...] = ()
    seconds: float = field(default=0.0, metadata=IDENTITY_NEUTRAL)
    logs: tuple[Blob, ...] = field(default=(), metadata=IDENTITY_NEUTRAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledCases:
    """Cases that were compiled and simulated in one process, in the order of the cases."""

    cases: tuple[CompiledCase, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCase:
    """What a device returned for a case, or why it failed there."""

    case: str
    device: str
    capture: Capture | None = None
    failure: str | None = None
    ending: CaseEnding | None = None  # how the case failed
    log: Blob | None = None  # of a failure


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCases:
    """The measurements of those cases of a part that have a program."""

    cases: tuple[MeasuredCase, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasRow:
    """One row per operator case of `qnnsweep atlas`: whether the operator works in the scheme on the SoC."""

    cell: CellIdentity
    arch: int
    """The number of the SoC's Hexagon architecture."""
    outcome: CaseOutcome
