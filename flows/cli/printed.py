"""The types of the objects that the commands print with `--json`."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from qnnsweep.flows.bisection.certificate import CertifiedSide, OperatorChange
from qnnsweep.flows.cli.devices import DeviceStatus
from qnnsweep.flows.repro import Reproducer
from qnnsweep.flows.runs.culprit import Culprit
from qnnsweep.flows.runs.diff import Difference
from qnnsweep.flows.runs.export import Exported
from qnnsweep.flows.runs.program_diff import ProgramDifference
from qnnsweep.flows.runs.qualification import Qualification
from qnnsweep.tasks.records import InspectedProgram, Simulated
from qnnsweep.tasks.storage.integrity import Verification
from qnnsweep.tasks.storage.inventory import Inventory
from qnnsweep.tasks.storage.retention import PrunePlan
from qnnsweep.tasks.toolchain.backends.backend import DoctorCheck
from qnnsweep.tasks.toolchain.prepared.record import ProbedProperty
from qnnsweep.tasks.toolchain.readback.program_changes import ProgramChange

_described = with_config(ConfigDict(use_attribute_docstrings=True))


class CellNames(TypedDict):
    model: str
    scheme: str
    soc: str
    toolchain: str


class WholeCellNames(CellNames):
    backend: str
    device: str


@_described
class CellSummary(WholeCellNames):
    outcome: str
    """passed, out_of_tolerance, failed, infrastructure or impossible."""
    final_snr_db: float | None
    """The lowest SNR of all final outputs and samples; inf if all are exact, null if none is known."""
    worst_output: str | None
    worst_sample: str | None
    sentence: str | None
    """What costs the accuracy, or why the cell failed, with the command to type next."""
    error: str | None
    culprit: Culprit | None
    """What to examine first, an operator with its module, cause, file and line, or an input; null without an error."""


@_described
class RunSummary(TypedDict):
    run_id: str
    cells: int
    outcomes: Mapping[str, int]
    regressions: int
    worse_since_an_earlier_run: int
    toolchain_calls: int
    reused: int
    tables: str
    report: str
    results: Sequence[CellSummary]
    """One object per cell, in the order of the sweep."""


@_described
class Trial(TypedDict):
    trial: int
    overrides: Sequence[str]
    objectives: Mapping[str, float]
    problem: str | None
    """Why the trial has no value."""
    best: bool


class Search(TypedDict):
    run_id: str
    trials: Sequence[Trial]
    report: str


@_described
class PlannedOperator(TypedDict):
    call: str
    count: int
    module_path: str
    forecast: str
    likeness: str | None
    case: str | None
    case_call: str | None
    measured_on: str | None
    why: str | None


@_described
class PlannedCell(WholeCellNames):
    impossible: str | None
    """Why the cell is not tried."""
    compiled: bool
    error: NotRequired[str | None]
    """Why the model cannot be exported, or what is wrong with an override; only if the models were checked."""
    operators: NotRequired[Sequence[PlannedOperator] | None]


@_described
class Plan(TypedDict):
    cells: Sequence[PlannedCell]
    seconds: float | None
    """The expected duration, from earlier runs."""


@_described
class AtlasCell(CellNames):
    device: str
    """The device of the cell, or its farm."""
    states: Mapping[str, int]
    """The number of operator cases per state."""
    compared: int
    differing: Sequence[str]
    """The cases in which another device has not returned what the simulator of this machine has."""


@_described
class Atlas(TypedDict):
    run_id: str
    report: str
    cells: Sequence[AtlasCell]


@_described
class Repair(TypedDict):
    run_id: str
    reached: bool
    reason: str
    before_snr_db: float | None
    after_snr_db: float | None
    changes: Sequence[str]
    compilations: int
    size_ratio: float | None
    scheme_file: str
    recipe_file: str
    page: str
    report: str
    certificate: Sequence[Mapping[str, Any]]
    """One object per SoC, before and after: the numbers on samples that the search has not used."""


@_described
class Tensors(TypedDict):
    file: str
    sample: int | None
    tensors: Sequence[str]


@_described
class WrittenModel(TypedDict):
    file: str
    model: str
    inputs: Sequence[Mapping[str, Any]]
    next: str
    """The command to type next."""


@_described
class Listed(TypedDict, total=False):
    models: Sequence[Mapping[str, str]]
    schemes: Sequence[Mapping[str, str]]
    socs: Sequence[Mapping[str, str]]
    devices: Sequence[Mapping[str, str]]
    runs: Sequence[Mapping[str, str | int]]
    operators: Sequence[Mapping[str, str | None]]


@_described
class Toolchain(TypedDict):
    name: str
    folder: str
    qnn: str
    origin: str
    executorch: str | None
    bridge: str | None
    release: str | None
    commit: str | None
    passes_off: Sequence[str]
    operators_skipped: Sequence[str]
    unverified: Sequence[str]
    """The sources of which no digest is known."""
    provisional: str | None
    """The settings that did not arrive in the programs of the probe."""
    digest: str
    probed: Sequence[ProbedProperty]


class Toolchains(TypedDict):
    folder: str
    toolchains: Sequence[Toolchain]


class Flip(TypedDict):
    before: CertifiedSide
    after: CertifiedSide
    between: Sequence[CertifiedSide]
    operators: Sequence[OperatorChange]
    operator: str | None


class ProgramChanges(TypedDict):
    a: str
    b: str
    changes: Sequence[ProgramChange]


@_described
class Problem(TypedDict):
    message: str
    """What is wrong and what to do, as on stderr."""
    kind: str
    """The class of the error, such as RequestError; docs/python.md says who must act."""
    exit_code: int
    key: str | None
    """The wrong key or option."""


@_described
class Failed(TypedDict):
    error: Problem
    """What a command prints in place of its object, if it could not do its work."""


PRINTED: dict[str, tuple[Any, dict[str, Any]]] = {
    "run": (RunSummary, {}),
    "search": (Search, {}),
    "report --site": (None, {"site": str}),
    "export": (Exported, {}),
    "plan": (Plan, {}),
    "inspect": (
        InspectedProgram,
        {
            "file": str,
            "compared_operators": NotRequired[Sequence[Mapping[str, Any]]],
            "outputs": NotRequired[Sequence[Mapping[str, Any]]],
            "outputs_reference": NotRequired[str],
            "inspector_failed": NotRequired[str | None],
        },
    ),
    "diff files": (ProgramChanges, {}),
    "diff --programs": (ProgramDifference, {}),
    "devices": (None, {"devices": Sequence[DeviceStatus]}),
    "doctor": (None, {"checks": Sequence[DoctorCheck]}),
    "diff": (Difference, {"regressions": int, "lost": int, "page": str | None}),
    "qualify": (Qualification, {"passed": bool, "page": str, "report": str}),
    "bisect": (
        None,
        {
            **dict.fromkeys(("run_id", "reason", "oracle", "report", "page"), str),
            "key": str | None,
            "points": Sequence[Mapping[str, Any]],
            "smallest": Sequence[str],
            "flips": Sequence[Flip],
        },
    ),
    "repair": (Repair, {}),
    "atlas": (Atlas, {}),
    "repro": (Reproducer, {}),
    "list": (Listed, {}),
    "simulate": (Simulated, {"cell": str}),
    "tensors": (Tensors, {}),
    "init model": (WrittenModel, {}),
    "cache": (Inventory, {}),
    "cache prune": (PrunePlan, {"dry_run": bool}),
    "cache verify": (Verification, {"artifacts": str}),
    "toolchain add": (Toolchain, {}),
    "toolchain list": (Toolchains, {}),
    "error": (Failed, {}),
}
"""The type of each command's object, with the keys that it has beside those of this type."""
