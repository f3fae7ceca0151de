"""The comparison of a capture that was made elsewhere, beside that of ExecuTorch's Inspector. Runs in a worker."""

from collections.abc import Mapping
from dataclasses import dataclass

from qnnsweep.conf.tolerances import OperatorTolerance
from qnnsweep.tasks.comparison.capture import compare_outputs, compare_samples, joined
from qnnsweep.tasks.comparison.evidence import half_operators
from qnnsweep.tasks.numerics.verdict import of_scheme
from qnnsweep.tasks.records import Comparison, LoweredMethod
from qnnsweep.tasks.records.keys import METHOD
from qnnsweep.tasks.records.options import ComparisonOptions
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.captured_files import CapturedFiles

_EIGHT_BITS = 255
_ONLY_FORWARD = f"it knows the method {METHOD} alone"
_ONLY_OUTPUTS = (
    "a file of torch.export does not say which operator computes a logged tensor; give the ETRecord, which is recorded "
    "with generate_etrecord"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignComparison:
    """A comparison, and what ExecuTorch's Inspector says."""

    lowered: LoweredMethod
    comparison: Comparison
    inspector: Mapping[int, float | None]
    """By operator index, the SNR in the Inspector's row; an operator without a row is absent."""
    inspector_failed: str | None
    """Why the Inspector gave no rows at all; None if it did."""
    reference: str
    """The program that the outputs are compared with: the exported program, or the edge program."""


def compare_foreign(
    files: CapturedFiles, tolerances: Mapping[str, OperatorTolerance], store: Store
) -> ForeignComparison:
    """Compare the operators of a program that was executed elsewhere, with the functions of the stage compare.

    With a file of torch.export in place of the ETRecord, only the outputs are compared.

    `tolerances`: those of the operators, of all schemes. The grids of the values tell whose apply.
    Raises EvidenceError for damaged files and files that do not fit each other, and RequestError without inputs.
    """
    from qnnsweep.tasks.toolchain.foreign import foreign_cell
    from qnnsweep.tasks.toolchain.inspector import inspector_gaps

    cell = foreign_cell(files, store)
    (of_method,), (captured,) = cell.lowered.methods, cell.capture.methods
    options = ComparisonOptions(classifier=False, tolerances=of_scheme(dict(tolerances), _scheme(of_method)))
    outputs = compare_outputs(of_method, captured, options, store)
    gaps: dict[int, float | None] = {}
    failed, of_samples = _ONLY_OUTPUTS, []
    if any(row.debug_handle for row in of_method.operators):
        of_samples, failed = [compare_samples(of_method, captured, options, store)], _ONLY_FORWARD
        if cell.method == METHOD:  # the Inspector would take the operators of another method for those of this one
            gaps, failed = inspector_gaps(of_method.operators, files.etrecord, files.etdump, files.buffer)
    return ForeignComparison(
        lowered=of_method,
        comparison=joined(outputs, of_samples),
        inspector=gaps,
        inspector_failed=failed,
        reference=cell.reference,
    )


def _scheme(lowered: LoweredMethod) -> str:
    """Return the shipped scheme that computes like the program."""
    ranges = [row.quantization.quant_max - row.quantization.quant_min for row in lowered.operators if row.quantization]
    if ranges:
        return "16a8w" if max(ranges) > _EIGHT_BITS else "8a8w"
    return "fp16" if half_operators(lowered) else "fp32"
