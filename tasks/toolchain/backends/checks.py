"""A check of the audit, made from what was expected and what was read."""

from tasks.records import ProgramCheck
from tasks.records.vocabulary import ProgramName


def program_check(
    program: ProgramName,
    check: str,
    asked: str,
    got: str | None,
    *,
    subgraph: int | None = None,
    subject: str | None = None,
    agrees: bool | None = None,
    reason: str | None = None,
) -> ProgramCheck:
    """Return the check of one property of a program.

    `got`: None if it could not be read, for `reason`. `agrees`: whether the two agree, where that is not equality.
    """
    met = got is not None and (asked == got if agrees is None else agrees)
    return ProgramCheck(
        program=program,
        subgraph=subgraph,
        check=check,
        subject=subject,
        asked=asked,
        got=got,
        status="met" if met else "unread" if got is None else "differs",
        reason=reason if got is None else None,
    )
