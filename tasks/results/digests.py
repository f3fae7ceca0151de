"""The digests of a cell's inputs in the table `cells`. `diff` names the inputs that changed, and `plan` equal cells."""

from conf.schema import Request
from tasks.storage.digest import digest


def input_digests(request: Request, code: str | None) -> dict[str, str | None]:
    """Return the digests by column. `code`: the digest of the model's code and files; None if it was not needed."""
    return {
        "model_digest": digest([request.model, code]) if code else None,
        "scheme_digest": digest(request.scheme),
        "soc_digest": digest(request.soc),
        "request_digest": digest([request.measure, request.tolerance, request.backend]),
    }
