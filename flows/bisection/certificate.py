"""The certificate of a bisection: what flips the answer, with the numbers and digests of both sides, and commands."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnsweep.conf.masking import mask_secrets
from qnnsweep.conf.schema import TrendConfig
from qnnsweep.flows.bisection.probes import Probe
from qnnsweep.flows.session import command
from qnnsweep.tasks.records.tables import VERSION_COLUMNS
from qnnsweep.tasks.results.bisection import Answer
from qnnsweep.tasks.results.oracle import introduced_snr_db
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted

NUMBERS = (
    *("outcome", "final_difference", "final_snr_db", "device_difference", "device_snr_db", "top1_agreement"),
    *("accuracy", "operators_introduced", "worst_operator", "worst_operator_cause", "delegated_nodes"),
    *("non_delegated_nodes", "pte_bytes"),
)
"""The columns of the table `cells` that a certificate has of both sides."""
_LEAST_CHANGE_DB = TrendConfig().floors.introduced_snr_db


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifiedSide:
    """A side of a flip."""

    label: str
    answer: Answer
    value: float | str | None
    """The value that the oracle compared."""
    why: str | None
    numbers: Mapping[str, float | str | None]
    versions: Mapping[str, str | None]
    error: str | None
    outputs_sha256: str | None
    program_sha256: str | None
    toolchain_digest: str | None
    commit: str | None
    subject: str | None
    files: tuple[str, ...]
    """The files of the QNN backend that the commit changed."""
    commands: tuple[str, ...]
    """The commands that reproduce this side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorChange:
    """An operator whose introduced error differs between a good and a bad cell: the lowest SNR of all samples."""

    operator: str
    module_path: str
    good_db: float
    """∞ if the operator is exact."""
    bad_db: float

    @property
    def is_worse(self) -> bool:
        return self.bad_db < self.good_db


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifiedFlip:
    """Two cells with different answers, and nothing testable between them."""

    before: CertifiedSide
    after: CertifiedSide
    between: tuple[CertifiedSide, ...]
    """The untestable points between the two."""
    operators: tuple[OperatorChange, ...]
    """The operators whose introduced error differs, worst first."""

    @property
    def bad(self) -> CertifiedSide:
        return self.before if self.before.answer == "bad" else self.after

    @property
    def good(self) -> CertifiedSide:
        return self.after if self.before.answer == "bad" else self.before

    @property
    def operator(self) -> str | None:
        """The operator to examine first; None if no operator got worse, or if a side has no operators."""
        return next((change.operator for change in self.operators if change.is_worse), None)


def certified_flip(
    before: Probe, after: Probe, between: Sequence[Probe], folders: Sequence[Path], masked_names: str
) -> CertifiedFlip:
    """Return the certificate of a flip between two probes."""
    good, bad = (after, before) if before.answer == "bad" else (before, after)
    sides = [_side(probe, folders, masked_names) for probe in (before, after, *between)]
    operators = sorted(_operators(good, bad), key=_severity)
    return CertifiedFlip(before=sides[0], after=sides[1], between=tuple(sides[2:]), operators=tuple(operators))


def _side(probe: Probe, folders: Sequence[Path], masked_names: str) -> CertifiedSide:
    cell, commit, row = probe.cell, probe.point.commit, probe.row or {}
    error = row.get("error") or row.get("reason")
    return CertifiedSide(
        label=probe.point.label,
        answer=probe.answer,
        value=probe.judgement.value,
        why=probe.judgement.why,
        numbers={name: row.get(name) for name in NUMBERS},
        versions={name: row.get(name) for name in VERSION_COLUMNS},
        error=str(error).strip().partition("\n")[0] if error else None,
        outputs_sha256=row.get("outputs_sha256"),
        program_sha256=cell.lowered.program.sha256 if cell and cell.lowered else None,
        toolchain_digest=digest(cell.toolchain) if cell and cell.toolchain else None,
        commit=commit.sha if commit else None,
        subject=commit.subject if commit else None,
        files=commit.files if commit else (),
        commands=tuple(_commands(probe, folders, masked_names)),
    )


def _commands(probe: Probe, folders: Sequence[Path], masked_names: str) -> Iterator[str]:
    toolchain = probe.point.toolchain
    if toolchain is not None:
        name = [probe.toolchain] if probe.toolchain else []
        yield shlex.join(["qnnsweep", "toolchain", "add", *name, *_toolchain_words(toolchain)])
    if probe.cell is not None:
        words = mask_secrets(probe.point.overrides, masked_names)
        yield shlex.join(command([*words, *([f"toolchain={probe.toolchain}"] if probe.toolchain else [])], folders))


def _toolchain_words(toolchain: Wanted) -> Iterator[str]:
    for key, value in (("qnn", toolchain.qnn), ("executorch", toolchain.executorch)):
        if value is not None:
            yield f"{key}={value}"
    for key, names in (("passes_off", toolchain.passes_off), ("operators_skipped", toolchain.operators_skipped)):
        if names:
            yield f"{key}=[{','.join(names)}]"


def _severity(change: OperatorChange) -> tuple[bool, float]:
    return not change.is_worse, change.bad_db


def _operators(good: Probe, bad: Probe) -> Iterator[OperatorChange]:
    """Yield the operators that are measured on both sides and whose introduced error differs."""
    if good.cell is None or bad.cell is None:
        return
    before, after = introduced_snr_db(good.tables), introduced_snr_db(bad.tables)
    modules = {row["operator"]: row["module_path"] for row in bad.tables["operators"]}
    for operator, snr_db in after.items():
        other = before.get(operator)
        if snr_db is not None and other is not None and snr_db != other and abs(snr_db - other) > _LEAST_CHANGE_DB:
            yield OperatorChange(operator=operator, module_path=modules[operator], good_db=other, bad_db=snr_db)
