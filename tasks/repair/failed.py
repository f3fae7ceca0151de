"""What is tried after the toolchain has refused a program or has failed: where the error begins, and what compiles."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qnnsweep.conf.impossible import excluded_scheme
from qnnsweep.conf.schema import SocConfig
from qnnsweep.conf.schemes import Precision, SchemeConfig
from qnnsweep.tasks.errors import RequestError, ToolchainError
from qnnsweep.tasks.records import ExportedModel
from qnnsweep.tasks.repair.refused import changes
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain import entrypoints
from qnnsweep.tasks.toolchain.workers.pool import WorkerPool

_LINE = re.compile(r"[^\s(]+\.py:\d+")
"""The file and the number of a user's line, in its words."""
_MOST_CPU_S = 600.0
"""The processor time after which the search of an operator is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """Compilations of changed programs of a model. Nothing is tried for models with several methods or with states."""

    exported: ExportedModel
    scheme: SchemeConfig
    kind: str
    soc: SocConfig | None = None
    store: Store
    workers: WorkerPool

    def what_compiles(self, nodes: Sequence[str]) -> str:
        """Try changes of the scheme, and return what came of them, in words.

        `nodes`: those that the error is about. The search ends with the first change that compiles. No quantized
        scheme is tried without calibration samples.
        """
        if not self._is_single():
            return ""
        (method,) = self.exported.methods
        failed: list[str] = []
        for words, changed in changes(nodes, self.scheme):
            is_possible = method.calibration is not None or changed.precision is not Precision.quantized
            if not is_possible or excluded_scheme(self.kind, self.soc, changed) is not None:
                continue
            given = entrypoints.why_refused, method, changed, self.kind, self.soc, self.store
            try:
                refused = self.workers.call("lower", *given, subject=self._subject(changed)).value
            except (RequestError, ToolchainError) as error:
                refused = str(error)
            if refused is None:
                return f"; tried: it compiles with {words}"
            failed.append(words)
        return f"; tried: it does not compile with {', or with '.join(failed)}" if failed else ""

    def named(self, error: ToolchainError) -> ToolchainError | None:
        """Return the error with the operator that brings it and with what compiles instead, both found by trials.

        Return None if `error` is no exception of the toolchain, if it names a line, or if no operator is found in time.
        """
        first, *more = str(error).splitlines()
        begins = f"{error.stage} failed: "
        if not first.startswith(f"{begins}{error.cause}: ") or _LINE.search(first) or not self._is_single():
            return None
        (method,) = self.exported.methods
        given = method, self.scheme, self.kind, self.soc, error.stage, first, self.store
        search, subject = (entrypoints.first_failing, *given), self._subject(self.scheme)
        try:
            found = self.workers.call(error.stage, *search, subject=subject, most_cpu_s=_MOST_CPU_S).value
        except ToolchainError:
            return None
        if found is None:
            return None
        node, words = found
        compiles = "" if error.stage == "quantize" else self.what_compiles([node])
        said = first.removeprefix(begins)
        first = f"{begins}{words} is the first operator with which the program fails{compiles}; {said}"
        return ToolchainError("\n".join([first, *more]), stage=error.stage, cause=error.cause, log=error.log)

    def _is_single(self) -> bool:
        return self.exported.model.driven is None and self.exported.methods[0].method is None

    def _subject(self, scheme: SchemeConfig) -> tuple[str, ...]:
        return (self.exported.model.name, scheme.name, self.kind, *([self.soc.name] if self.soc else []))
