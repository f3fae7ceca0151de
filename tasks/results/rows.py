"""The rows of every table, made from the results of the cells."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from qnnsweep.conf.backends import planned_backend
from qnnsweep.conf.devices import RunnerKind
from qnnsweep.tasks.errors import ProgramDiffers, RunnerFailed
from qnnsweep.tasks.numerics.coverage import coverage
from qnnsweep.tasks.numerics.ladder import worst_rung
from qnnsweep.tasks.numerics.modules import module_times
from qnnsweep.tasks.numerics.reported import reported_output, reported_worst_operator
from qnnsweep.tasks.numerics.timing import spread
from qnnsweep.tasks.records import (
    AtlasRow,
    Command,
    Comparison,
    ErrorShare,
    ExportedModel,
    Gap,
    LoweredMethod,
    LoweredProgram,
    OperatorComparison,
    OutputComparison,
    QuantizedModel,
    Toolchain,
)
from qnnsweep.tasks.records.cell_rows import (
    AuditRow,
    CellIdentity,
    CellRow,
    CommandRow,
    DelegationRow,
    ProbeRow,
    WorkRow,
)
from qnnsweep.tasks.records.methods import named_operator
from qnnsweep.tasks.records.operator_rows import (
    BudgetRow,
    DetailRow,
    MetricRow,
    ModuleRow,
    OperatorRow,
    OutputRow,
    ProfileRow,
    ScoreRow,
    StepRow,
)
from qnnsweep.tasks.records.tables import SUBJECT_COLUMNS, TABLES, Row
from qnnsweep.tasks.records.vocabulary import OWN_ERROR, SampleRole, TimedOn
from qnnsweep.tasks.results.diagnosis import diagnosis
from qnnsweep.tasks.results.digests import input_digests, outputs_sha256, settings, started
from qnnsweep.tasks.results.handed_on import row_of, without_folder
from qnnsweep.tasks.results.headline import with_snr
from qnnsweep.tasks.results.outcome import CellResult, judge
from qnnsweep.tasks.toolchain.workers.supervisor import CallCost


def rows(
    run_id: str,
    cells: Sequence[CellResult],
    toolchain: Toolchain | None,
    costs: Sequence[CallCost] = (),
    *,
    verb: str = "run",
) -> dict[str, list[Row]]:
    """Return the rows of all tables except `trends`, in the order of the plan.

    `toolchain`: the toolchain of the cells that state none; None if not needed.
    """
    tables: dict[str, list[Row]] = {table: [] for table in TABLES if table != "trends"}
    tables["work"] = [row_of(_call(run_id, cost)) for cost in costs]
    for cell in cells:
        where = identity(run_id, cell)
        tables["cells"].append(row_of(_cell(where, cell, toolchain, verb)))
        for table, rows_of_cell in _ROWS.items():
            tables[table] += map(row_of, rows_of_cell(where, cell))
        for table, rows_of_comparison in _ROWS_OF_COMPARISON.items():
            if cell.comparison is not None:
                tables[table] += map(row_of, rows_of_comparison(where, cell.comparison))
    return tables


def identity(run_id: str, cell: CellResult) -> CellIdentity:
    model, scheme, soc, toolchain, backend, where = cell.request.names
    device = cell.capture.device if cell.capture else where
    return CellIdentity(
        run_id=run_id, model=model, scheme=scheme, soc=soc, device=device, backend=backend, toolchain=toolchain
    )


def _cell(identity: CellIdentity, cell: CellResult, toolchain: Toolchain | None, verb: str) -> CellRow:
    judged = judge(cell)
    request, comparison = cell.request, cell.comparison
    exported, quantized, lowered, capture = cell.exported, cell.quantized, cell.lowered, cell.capture
    methods = lowered.methods if lowered else ()
    delegation = [row for method in methods for row in method.delegation]
    debugs = [debug.program for method in methods for debug in method.debug_programs]
    debug_bytes = sum(program.size for program in debugs if program is not None)
    operators = comparison.operators if comparison else ()
    with_conversions = (*operators, *comparison.requantized) if comparison else ()
    introducing = {row.operator.name for row in with_conversions if row.verdict in OWN_ERROR}
    masked = {row.operator.name for row in operators if row.status == "masked"}
    worst = reported_worst_operator(comparison) if comparison else None
    output = reported_output(comparison) if comparison else None
    compared, total = (None, sum(len(method.operators) * len(method.chosen) for method in methods) if lowered else None)
    if operators:
        compared, total = coverage(row.status for row in operators)
    return CellRow(
        cell=identity,
        stage=cell.stage,
        outcome=judged.outcome,
        error_type=None if cell.error is None else type(cell.error).__name__,
        error=None if cell.error is None else str(cell.error) or repr(cell.error),
        reason=judged.reason,
        diagnosis=diagnosis(cell, judged),
        weights=exported.model.weights if exported else None,
        samples_origin=exported.model.samples if exported else None,
        export_s=_seconds(exported, "export"),
        quantize_s=_seconds(quantized, "quantize"),
        edge_s=_seconds(lowered, "edge"),
        lower_s=_seconds(lowered, "lower"),
        execute_s=sum(result.command.seconds for result in capture.results) if capture else None,
        measured_run=capture.measured_run if capture else None,
        sent_bytes=capture.bytes_sent if capture else None,
        outputs_sha256=outputs_sha256(capture) if capture else None,
        pte_bytes=lowered.program.size if lowered else None,
        debug_pte_bytes=debug_bytes or None,
        delegated_nodes=sum(row.delegated for row in delegation) if lowered else None,
        non_delegated_nodes=sum(row.not_delegated for row in delegation) if lowered else None,
        delegated_subgraphs=sum(method.delegated_subgraphs for method in methods) if lowered else None,
        spill_bytes=_compile_fact(methods, "spill_bytes"),
        fill_bytes=_compile_fact(methods, "fill_bytes"),
        write_total_bytes=_compile_fact(methods, "write_total_bytes"),
        read_total_bytes=_compile_fact(methods, "read_total_bytes"),
        program_soc=_context_fact(methods, "soc"),
        program_arch=_context_fact(methods, "arch", "v{}"),
        program_qnn=_context_fact(methods, "build"),
        operators_total=total,
        operators_compared=compared,
        samples=sum(len(method.sample_names) for method in exported.methods) if exported else None,
        finals=judged.finals,
        worst_sample=output.sample if output else None,
        worst_sample_name=output.sample_name if output else None,
        worst_final_output=output.output if output else None,
        sample_role=_role_of_output(cell, output) if output else None,
        limits=judged.limits,
        missed_limits=judged.missed_limits,
        latency_p50_ms=_latency(cell),
        device_id=capture.device_id if capture else None,
        timed_on=_timed_on(cell),
        equal_tensors=cell.capture.equal_tensors if cell.capture else None,
        observer_effect=comparison.observer_effect if comparison else None,
        observer_effect_snr_db=comparison.observer_effect_snr_db if comparison else None,
        worst_rung=worst_rung(with_snr(comparison.outputs, cell.request.tolerance.headline)) if comparison else None,
        operators_introduced=len(introducing) if operators else None,
        operators_masked=len(masked) if operators else None,
        worst_operator=worst.row.operator.name if worst else None,
        worst_operator_verdict=worst.row.verdict if worst else None,
        worst_operator_cause=worst.cause if worst else None,
        worst_operator_introduced_snr_db=worst.row.parts.introduced_snr_db if worst else None,
        worst_operator_effect_snr_db=worst.effect_snr_db if worst else None,
        toolchain=cell.toolchain or toolchain,
        log=_log(cell),
        started=started(identity.run_id),
        verb=verb,
        farm=request.farm.name if request.pool else None,
        digests=input_digests(request, cell.code),
        settings=settings(request),
    )


def _role_of_output(cell: CellResult, output: OutputComparison) -> SampleRole | None:
    """Return why the operators of the reported sample were captured; None if they were not."""
    methods, captured = cell.lowered.methods if cell.lowered else (), cell.capture.methods if cell.capture else ()
    pairs = zip(methods, captured, strict=False)
    own = (pair for pair in pairs if pair[0].exported.method == output.method and output.sample in pair[1].captured)
    return next((lowered.role(output.sample) for lowered, _ in own), None)


def _compile_fact(methods: Sequence[LoweredMethod], name: str) -> int | None:
    """Return the sum of the number `name` over all delegated subgraphs; None if the compiler printed no numbers."""
    facts = [fact for method in methods for fact in method.compile_facts]
    return sum(getattr(fact, name) for fact in facts) if facts else None


def _seconds(record: ExportedModel | QuantizedModel | LoweredProgram | None, stage: str) -> float | None:
    """Return the duration of the call of a stage that made the record."""
    return next((call.seconds for call in record.made if call.stage == stage), None) if record else None


def _context_fact(methods: Sequence[LoweredMethod], name: str, form: str = "{}") -> str | None:
    """Return the fact `name` of the contexts in the shipping program's QNN delegates; None if no context was read."""
    delegates = [delegate for method in methods for delegate in method.facts.delegates]
    names = {form.format(getattr(delegate.context, name)) for delegate in delegates if delegate.context}
    return ", ".join(sorted(names)) or None


def _latency(cell: CellResult) -> float | None:
    """Return the shipping program's median latency in ms. A sample's latency is its mean inference time."""
    results = cell.capture.results if cell.capture else ()
    latencies = [ms for result in results if result.launch.name == "shipping" for ms in result.latencies_ms]
    return float(np.median(latencies)) if latencies else None


def _timed_on(cell: CellResult) -> TimedOn | None:
    """Return what ran the programs of a cell that was measured."""
    if cell.capture is None:
        return None
    devices = {device.name: device for device in cell.request.devices}
    device = devices.get(cell.capture.device, cell.request.device)
    if device.runner is RunnerKind.onnxruntime and device.soc is not None:
        return "device"
    simulates = device.runner in planned_backend(cell.request.backend.kind).simulating_runners
    return "simulator" if simulates else "device"


def _log(cell: CellResult) -> str | None:
    """Return the sha256 of the failed call's log or, if there is no such log, of the last toolchain call's log."""
    if (log := getattr(cell.error, "log", None)) is not None:
        return log
    made = next((record.made for record in (cell.lowered, cell.quantized, cell.exported) if record), ())
    return next((call.log.sha256 for call in reversed(made) if call.log), None)


def _call(run_id: str, cost: CallCost) -> WorkRow:
    names: dict[str, str | None] = dict.fromkeys(("model", "scheme", "soc", "device", "backend"))
    names["toolchain"] = cost.toolchain
    names |= zip(SUBJECT_COLUMNS, cost.subject, strict=False)
    identity = CellIdentity(run_id=run_id, **names)
    return WorkRow(cell=identity, stage=cost.stage, seconds=cost.seconds, peak_bytes=cost.peak_bytes)


def _work(identity: CellIdentity, cell: CellResult) -> Iterator[WorkRow]:
    for stage, seconds in cell.seconds.items():
        yield WorkRow(cell=identity, stage=stage, seconds=seconds, peak_bytes=None)


def _operators(identity: CellIdentity, cell: CellResult) -> Iterator[OperatorRow]:
    """Yield a row per operator, captured sample and reference, even if the operator was not compared.

    A value that a delegate converted to another grid has rows too. They have no `operator_index`.
    """
    comparison = cell.comparison
    if cell.lowered is None:
        return
    roles = {lowered.exported.method: lowered.role for lowered in cell.lowered.methods}
    if comparison is not None and comparison.operators:
        effects = device_effects(comparison.budget)
        for row in (*comparison.operators, *comparison.other_references):
            effect = effects.get((row.operator.name, row.sample)) if row.reference == "edge" else None
            yield operator_row(identity, row, roles[row.operator.method](row.sample), effect)
        for row in comparison.requantized:
            yield replace(operator_row(identity, row, roles[row.operator.method](row.sample)), operator_index=None)
    else:
        first = 0
        for lowered in cell.lowered.methods:
            for choice in lowered.chosen:
                for row in _not_dumped(lowered, cell.request.measure.references, choice.sample):
                    yield operator_row(identity, _in_method(row, lowered, first), choice.role)
                for tensor in lowered.requantized:
                    row = OperatorComparison(
                        operator=tensor.operator, sample=choice.sample, status="not_dumped", gap=Gap()
                    )
                    row = _in_method(row, lowered, first)
                    yield replace(operator_row(identity, row, choice.role), operator_index=None)
            first += len(lowered.operators)


def _in_method(row: OperatorComparison, lowered: LoweredMethod, first: int) -> OperatorComparison:
    """Return the row with the name and number that its operator has in a program with several methods."""
    return replace(row, operator=named_operator(row.operator, lowered.exported.method, first))


def device_effects(budget: Iterable[ErrorShare]) -> dict[tuple[str, int], float]:
    """Return, per operator and sample, the lowest SNR of a final output with the operator's introduced error alone."""
    effects: dict[tuple[str, int], float] = {}
    for share in budget:
        if share.cause == "device" and share.operator is not None and share.alone_snr_db is not None:
            place = share.operator, share.sample
            effects[place] = min(share.alone_snr_db, effects.get(place, share.alone_snr_db))
    return effects


def _not_dumped(lowered: LoweredMethod, references: Sequence[str], sample: int) -> Iterator[OperatorComparison]:
    for operator in lowered.operators:
        yield OperatorComparison(operator=operator, sample=sample, status="not_dumped", gap=Gap())
    for other in (other for other in lowered.references if other.name in references):
        row_against = partial(OperatorComparison, sample=sample, gap=Gap(), reference=other.name)
        for operator, counterpart in zip(lowered.operators, other.counterparts, strict=True):
            yield row_against(operator=operator, status="not_dumped", nodes=counterpart.nodes)
        for node in other.unclaimed:
            yield row_against(operator=node, status="no_operator", nodes=(node.name,))


def operator_row(
    identity: CellIdentity, row: OperatorComparison, role: SampleRole, effect_snr_db: float | None = None
) -> OperatorRow:
    """Return the row of an operator in the table `operators`."""
    operator, qparams = row.operator, row.operator.quantization
    values: dict[str, Any] = _shared(OperatorRow, operator, row) | {
        "operator_index": None if row.status == "no_operator" else operator.index,
        "operator": operator.name,
        "source_nodes": operator.source_nodes if row.nodes is None else row.nodes,
        "reads": operator.sources,
        "scale": qparams.scale if qparams else None,
        "zero_point": qparams.zero_point if qparams else None,
        "delegated": operator.subgraph is not None,
        "introduced_spans": row.spans,
        "sample_role": role,
        "effect_snr_db": effect_snr_db,
    }
    return OperatorRow(cell=identity, **values)


def _profile(identity: CellIdentity, comparison: Comparison) -> Iterator[ProfileRow]:
    for event in comparison.profile:
        handles, operators = event.debug_handles, event.operators
        values: dict[str, Any] = _shared(ProfileRow, event) | {
            "event": event.name,
            "spread": spread(event.raw),
            "debug_handle": handles[0] if len(handles) == 1 else None,
            "operators": tuple(operator.name for operator in operators),
            "op_types": tuple(operator.target for operator in operators),
            "module_paths": tuple(operator.module_path for operator in operators),
            "stack_traces": tuple(operator.stack_trace for operator in operators),
            "delegate": event.subgraph is not None,
            "delegate_backend": event.backend,
        }
        yield ProfileRow(cell=identity, **values)


def _shared(kind: type[Any], *records: object) -> dict[str, Any]:
    """Return the values of the records' fields that a row of this kind has too, under the same names."""
    names = [field.name for field in fields(kind)]
    return {name: getattr(record, name) for record in records for name in names if hasattr(record, name)}


def _delegation(identity: CellIdentity, cell: CellResult) -> Iterator[DelegationRow]:
    for lowered in cell.lowered.methods if cell.lowered else ():
        for count in lowered.delegation:
            yield DelegationRow(
                cell=identity,
                method=lowered.exported.method,
                operator=count.operator,
                occurrences_delegated=count.delegated,
                occurrences_not_delegated=count.not_delegated,
                refusals=count.refusals,
            )


def _audit(identity: CellIdentity, cell: CellResult) -> Iterator[AuditRow]:
    """Yield a row per check of a program, even if the program was refused because of a check."""
    checks = cell.lowered.checks if cell.lowered else ()
    for check in cell.error.checks if isinstance(cell.error, ProgramDiffers) else checks:
        yield AuditRow(cell=identity, check=check)


def _atlas(identity: CellIdentity, cell: CellResult) -> Iterator[AtlasRow]:
    for outcome in cell.cases or ():
        yield AtlasRow(cell=identity, arch=cell.request.soc.arch, outcome=outcome)


def _commands(identity: CellIdentity, cell: CellResult) -> Iterator[CommandRow]:
    """Yield a row per start of the runner on a device."""
    commands: list[Command] = [result.command for result in cell.capture.results] if cell.capture else []
    if isinstance(cell.error, RunnerFailed):
        commands.append(cell.error.command)
    for command in commands:
        yield CommandRow(cell=identity, command=without_folder(command))


_ROWS: dict[str, Callable[[CellIdentity, CellResult], Iterable[Any]]] = {
    "operators": _operators,
    "delegation": _delegation,
    "audit": _audit,
    "work": _work,
    "commands": _commands,
    "atlas": _atlas,
}
"""The functions that yield the rows of a cell, by table. `_ROWS_OF_COMPARISON` has the tables of the comparison."""
_ROWS_OF_COMPARISON: dict[str, Callable[[CellIdentity, Comparison], Iterable[Any]]] = {
    "outputs": lambda cell, comparison: (OutputRow(cell=cell, comparison=output) for output in comparison.outputs),
    "steps": lambda cell, comparison: (StepRow(cell=cell, comparison=step) for step in comparison.steps),
    "scores": lambda cell, comparison: (ScoreRow(cell=cell, score=score) for score in comparison.scores),
    "profile": _profile,
    "modules": lambda cell, comparison: (ModuleRow(cell=cell, time=time) for time in module_times(comparison.profile)),
    "budget": lambda cell, comparison: (BudgetRow(cell=cell, share=share) for share in comparison.budget),
    "details": lambda cell, comparison: (DetailRow(cell=cell, detail=detail) for detail in comparison.details),
    "metrics": lambda cell, comparison: (MetricRow(cell=cell, value=value) for value in comparison.metrics),
    "probe": lambda cell, comparison: (ProbeRow(cell=cell, check=check) for check in comparison.io_checks),
}
"""The functions that yield the rows of a cell's comparison, by table."""
