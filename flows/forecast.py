"""What a plan will cost, from the tables of the latest runs in its folder. No file is written, and nothing is computed.

The programs of a cell are stored if a run had a cell with the same inputs and the same toolchain, which was compiled.
The times of the other cells are those of a cell with the same model, scheme and backend, if possible for the same SoC.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from statistics import fmean

from qnnsweep.conf.backends import make_importable
from qnnsweep.conf.plan import Plan
from qnnsweep.conf.schema import Request, Reuse
from qnnsweep.tasks.errors import EnvironmentUnusable, RequestError
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.results.digests import input_digests
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.query import select
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.prepared.choice import toolchain_of
from qnnsweep.tasks.toolchain.source_digest import code_digest

_RUNS = 10
"""The number of past runs that are read."""
_VERSIONS = ("python", "torch", "executorch", "torchao", "qnn", "qnn_files", "executorch_files")
_DIGESTS = ("model_digest", "scheme_digest", "soc_digest", "request_digest")
_SHARED_STAGES = {"export_s": ("model",), "quantize_s": ("model", "scheme"), "edge_s": ("model", "scheme")}
"""The cells that share a stage have these names in common, and the backend and the toolchain."""
_COLUMNS = (
    *("run_id", "model", "scheme", "soc", "device", "backend", "toolchain", "lower_s", "execute_s"),
    *_SHARED_STAGES,
    *_VERSIONS,
    *_DIGESTS,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What is expected of the cells of a plan, in their order."""

    compiled: Sequence[bool]
    """Whether the programs of a cell are stored."""
    unknown: int
    """The number of possible cells for which no run had a similar cell."""
    seconds: float | None
    """The expected duration of the run; None if `unknown` is not zero."""


def forecast(plan: Plan) -> Forecast | None:
    """Return the forecast of a plan; None if its store has no run."""
    store = Store.at(plan.artifacts, plan.cache_folder, plan.object_store)
    if not (latest := tables.runs(store)[-_RUNS:]):
        return None
    rows = [row for row in select(store, "cells", _COLUMNS, runs=latest, problems=set()) if row["lower_s"] is not None]
    comparisons = select(store, "work", ("stage", "seconds"), where={"stage": ["compare"]}, runs=latest, problems=set())
    requests = [cell.request for cell in plan.cells if cell.impossible is None]
    compiled = _compiled(requests, rows, plan, store)
    similar = [_similar(request, rows) for request in requests]
    unknown = similar.count(None)
    compare_s = fmean(row["seconds"] for row in comparisons) if comparisons else 0.0
    costs = [
        (request, row, stored)
        for request, row, stored in zip(requests, similar, compiled, strict=True)
        if row is not None
    ]
    flags = iter(compiled)
    return Forecast(
        compiled=[cell.impossible is None and next(flags) for cell in plan.cells],
        unknown=unknown,
        seconds=None if unknown else _seconds(costs, compare_s, plan.limits.parallel or os.cpu_count() or 1),
    )


def _compiled(requests: Sequence[Request], rows: Sequence[Row], plan: Plan, store: Store) -> list[bool]:
    """Return whether a run had a cell with the same inputs and versions, per request."""
    make_importable(plan.folders)
    known = {tuple(row[name] for name in (*_DIGESTS, *_VERSIONS)) for row in rows}
    codes = {digest(request.model): request.model for request in requests}
    code_of: dict[str, str] = {}
    for key, model in codes.items():
        with suppress(RequestError):  # the run reports it
            code_of[key] = code_digest(model)
    toolchains = {request.toolchain.name: request.toolchain for request in requests}
    versions_of: dict[str, Mapping[str, str | None]] = {}
    for name, toolchain in toolchains.items():
        with suppress(EnvironmentUnusable):
            versions_of[name] = asdict(toolchain_of(toolchain, store)[2])
    return [
        (code := code_of.get(digest(request.model))) is not None
        and (versions := versions_of.get(request.toolchain.name)) is not None
        and (*astuple(input_digests(request, code)), *(versions[name] for name in _VERSIONS)) in known
        for request in requests
    ]


def _similar(request: Request, rows: Sequence[Row]) -> Row | None:
    """Return the latest row with the same model, scheme and backend, if possible of the same SoC and device."""

    def likeness(row: Row) -> tuple[bool, bool, bool, str]:
        toolchain = row["toolchain"] == request.toolchain.name
        return row["soc"] == request.soc.name, row["device"] == request.where, toolchain, row["run_id"]

    wanted = (request.model.name, request.scheme.name, request.backend.name)
    likely = [row for row in rows if (row["model"], row["scheme"], row["backend"]) == wanted]
    return max(likely, key=likeness, default=None)


def _seconds(cells: Iterable[tuple[Request, Row, bool]], compare_s: float, parallel: int) -> float:
    """Return the duration of a run whose calls share `parallel` cores and whose programs wait for their device.

    `cells`: per cell, the request, a similar row, and whether its programs are stored.
    """
    shared: dict[tuple[str, ...], float] = {}
    cores_s, heads, on_devices = 0.0, [0.0], defaultdict[str, float](float)
    for request, row, stored in cells:
        compile_s = 0.0
        if not stored:
            for column, names in _SHARED_STAGES.items():
                axes = (getattr(request, name).name for name in (*names, "backend", "toolchain"))
                shared[column, *axes] = row[column] or 0.0
                compile_s += row[column] or 0.0
            cores_s += row["lower_s"]
            compile_s += row["lower_s"]
        heads.append(compile_s)
        if not (stored and request.reuse is Reuse.capture):
            cores_s += compare_s
            on_devices[request.where] += (row["execute_s"] or 0.0) / len(request.devices)
    cores_s += sum(shared.values())
    first = min(heads[1:], default=0.0)
    return max(cores_s / parallel, first + max(on_devices.values(), default=0.0) + compare_s * bool(on_devices))
