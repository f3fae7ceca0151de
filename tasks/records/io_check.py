"""The record of a check for one mistake at a program's inputs or outputs."""

from dataclasses import dataclass

from qnnsweep.tasks.records.vocabulary import ProbeSide, ProbeStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class IoCheck:
    """The result of a check for one possible mistake at the program's inputs or outputs.

    The mistake was made if the model with this mistake explains the device's outputs clearly better than the model
    without it: eager PyTorch or the rung designed, whichever is nearer to the device. A relative error is the squared
    error of the device's outputs against the model's outputs, divided by the energy of the model's outputs. A relative
    error of 0.01 corresponds to an SNR of 20 dB.

    Three checks of an output compare no mistake: whether it depends on the input, whether a part of it is constant
    although it varies in eager PyTorch, and whether it is the value that its producer logged in the debug program.
    """

    method: str | None = None
    """The method that was checked; null for a model with one method."""
    side: ProbeSide
    """The side of the program on which the mistake would be made: input or output."""
    mistake: str
    """A description of the mistake."""
    sample: int
    """The evaluation sample that shows most clearly whether the mistake was made."""
    status: ProbeStatus
    """Whether the mistake was made."""
    relative_error: float | None
    """Squared error against the model's outputs, divided by the energy of these outputs; null if not finite. For an
    output and its producer, the error against the logged value, or the share of wrong integers."""
    relative_error_mistaken: float | None
    """Squared error against the outputs of the model with the mistake, divided by the energy of these outputs; null if
    not finite."""
    detail: str | None
    """What exactly explains the device's outputs, which part is constant, or why the model cannot be run on the
    mistaken inputs."""
    of_the_scheme: bool = False
    """Whether the value is constant at the rung `designed`, too. Then another scheme can cure it."""
