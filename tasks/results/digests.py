"""The digests of a cell's inputs in the table `cells`. `diff` names the inputs that changed, and `plan` equal cells."""

from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records.cell_rows import InputDigests
from qnnsweep.tasks.storage.digest import digest


def input_digests(request: Request, code: str | None) -> InputDigests:
    """Return the digests of a cell's inputs. `code`: that of the model's code and files; None if it was not needed."""
    return InputDigests(
        model_digest=digest([request.model, code]) if code else None,
        scheme_digest=digest(request.scheme),
        soc_digest=digest(request.soc),
        request_digest=digest([request.measure, request.tolerance, request.backend]),
    )
