"""A finished program under audit, and the check of one of its properties."""

from dataclasses import dataclass

from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import SchemeConfig
from qnnsweep.tasks.records import LoweredMethod, ProgramCheck, ProgramFacts, Toolchain
from qnnsweep.tasks.records.vocabulary import ProgramName


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedProgram:
    """One finished program of a method, with the request that it was compiled for."""

    name: ProgramName
    facts: ProgramFacts
    lowered: LoweredMethod
    scheme: SchemeConfig
    soc: SocConfig | None
    toolchain: Toolchain

    def check(
        self,
        check: str,
        asked: str,
        got: str | None,
        *,
        subgraph: int | None = None,
        subject: str | None = None,
        agrees: bool | None = None,
        reason: str | None = None,
    ) -> ProgramCheck:
        """Return the check of one property.

        `asked`: the requested value. `got`: the program's value; None if it could not be read. `reason`:
        why it could not be read. `agrees`: whether `asked` and `got` agree; if `agrees` is None, they agree only when
        they are equal.
        """
        met = got is not None and (asked == got if agrees is None else agrees)
        return ProgramCheck(
            method=self.lowered.exported.method,
            program=self.name,
            subgraph=subgraph,
            check=check,
            subject=subject,
            asked=asked,
            got=got,
            status="met" if met else "unread" if got is None else "differs",
            reason=reason if got is None else None,
        )
