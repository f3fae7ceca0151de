"""The rows of every table, from what became of each cell. One row a planned cell, one row an operator and sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

from tasks.errors import ProgramDiffers, RunnerFailed
from tasks.numerics.coverage import coverage
from tasks.numerics.ladder import steepest
from tasks.numerics.modules import module_times
from tasks.numerics.timing import Spread, spread
from tasks.numerics.verdict import worst_operator
from tasks.records import Blob, Command, CompileFacts, Gap, LoweredProgram, Operator, OperatorComparison, Toolchain
from tasks.records.vocabulary import OperatorStatus
from tasks.results.outcome import CellResult, finals, judge
from tasks.storage.digest import digest
from tasks.toolchain.workers.supervisor import CallCost

Row = dict[str, Any]
SUBJECT = ("model", "scheme", "backend", "soc")
"""Whose work a toolchain call is: the columns of its `Subject`."""


def rows(
    run_id: str,
    cells: Sequence[CellResult],
    toolchain: Toolchain | None,
    costs: Sequence[CallCost] = (),
    *,
    verb: str = "run",
) -> dict[str, list[Row]]:
    """Every table of `tasks.storage.tables.TABLES` but `trends`, cells in the order planned.

    Without a toolchain none was come to.
    """
    tables: dict[str, list[Row]] = {
        name: []
        for name in (
            "operators",
            "outputs",
            "profile",
            "modules",
            "metrics",
            "delegation",
            "audit",
            "probe",
            "commands",
            "cells",
        )
    }
    tables["work"] = [_work(run_id, cost) for cost in costs]
    for cell in cells:
        request = cell.request
        names: Row = {
            "run_id": run_id,
            "model": request.model.name,
            "scheme": request.scheme.name,
            "soc": request.soc.name,
            "device": cell.capture.execution.device if cell.capture else request.where,
            "backend": request.backend.name,
        }
        found = {
            "operators": _operators(cell),
            "outputs": _outputs(cell),
            "profile": _profile(cell),
            "modules": _modules(cell),
            "metrics": _metrics(cell),
            "delegation": _delegation(cell),
            "audit": _audit(cell),
            "probe": map(_own, cell.comparison.io_checks if cell.comparison else ()),
            "commands": _commands(cell),
            "cells": iter([_cell(cell, toolchain, verb)]),
        }
        for table, contents in found.items():
            tables[table] += [names | row for row in contents]
    return tables


def _cell(cell: CellResult, toolchain: Toolchain | None, verb: str) -> Row:
    outcome, reason = judge(cell)
    exported, quantized, lowered, capture = cell.exported, cell.quantized, cell.lowered, cell.capture
    comparison = cell.comparison
    final = finals(comparison) if comparison else None
    seen = [row.status for row in comparison.operators] if comparison else []
    compared, total = coverage(seen) if seen else (None, _rows_without_comparison(lowered))
    return {
        "stage": cell.stage,
        "outcome": outcome,
        "error_type": None if cell.error is None else type(cell.error).__name__,
        "error": None if cell.error is None else str(cell.error) or repr(cell.error),
        "reason": reason,
        "weights": exported.weights if exported else None,
        "export_s": exported.seconds if exported else None,
        "quantize_s": quantized.seconds if quantized else None,
        "edge_s": lowered.edge_seconds if lowered else None,
        "lower_s": lowered.seconds if lowered else None,
        "execute_s": sum(result.command.seconds for result in capture.execution.results) if capture else None,
        "measured_run": capture.measured_run if capture else None,
        "sent_bytes": capture.execution.bytes_sent if capture else None,
        "outputs_sha256": capture.outputs.sha256 if capture else None,
        "pte_bytes": lowered.program.size if lowered else None,
        "debug_pte_bytes": lowered.debug_program.size if lowered and lowered.debug_program else None,
        "delegated_nodes": sum(row.delegated for row in lowered.delegation) if lowered else None,
        "non_delegated_nodes": sum(row.not_delegated for row in lowered.delegation) if lowered else None,
        "delegated_subgraphs": lowered.delegated_subgraphs if lowered else None,
        **_compile_facts(lowered.compile_facts if lowered else ()),
        **_program(lowered),
        "operators_total": total,
        "operators_compared": compared,
        "samples": len(exported.sample_names) if exported else None,
        "final_snr_db": final.snr_db if final else None,
        "final_cosine": final.cosine if final else None,
        "final_max_abs": final.max_abs if final else None,
        "top1_agreement": final.top1_agreement if final else None,
        "accuracy": final.accuracy if final else None,
        "accuracy_eager": final.accuracy_eager if final else None,
        "latency_p50_ms": _latency(cell),
        "observer_effect_snr_db": comparison.observer_effect_snr_db if comparison else None,
        "worst_rung": steepest(comparison.outputs) if comparison else None,
        **_blamed(comparison.operators if comparison else ()),
        **{each.name: getattr(toolchain, each.name, None) for each in fields(Toolchain)},
        "log": _log(cell),
        "verb": verb,
        "farm": cell.request.farm.name if cell.request.pool else None,
        **_asked(cell),
    }


def _asked(cell: CellResult) -> Row:
    """Digests of what the cell was asked to be: what changed between two nights is told by them."""
    request = cell.request
    return {
        "model_digest": digest([request.model, cell.code]) if cell.code else None,
        "scheme_digest": digest(request.scheme),
        "soc_digest": digest(request.soc),
        "request_digest": digest([request.measure, request.tolerance, request.backend]),
    }


def _program(lowered: LoweredProgram | None) -> Row:
    """What the shipping program's QNN subgraphs say of themselves; null where there are none, or they were not read."""
    delegates = lowered.facts.delegates if lowered else ()
    contexts = [delegate.context for delegate in delegates if delegate.context]
    told = {
        "program_soc": {context.soc for context in contexts},
        "program_arch": {f"v{context.arch}" for context in contexts},
        "program_qnn": {context.build for context in contexts},
    }
    return {name: ", ".join(sorted(values)) or None for name, values in told.items()}


def _rows_without_comparison(lowered: LoweredProgram | None) -> int | None:
    return len(lowered.operators) * lowered.operator_samples if lowered else None


def _compile_facts(facts: Sequence[CompileFacts]) -> Row:
    """Over all delegated subgraphs; null where the compiler said nothing."""
    names = ("spill_bytes", "fill_bytes", "write_total_bytes", "read_total_bytes")
    return {name: sum(getattr(fact, name) for fact in facts) if facts else None for name in names}


def _latency(cell: CellResult) -> float | None:
    """Median over the samples of the shipping program's mean inference, in ms."""
    if cell.capture is None:
        return None
    shipping = [result for result in cell.capture.execution.results if result.launch.name == "shipping"]
    taken = [ms for result in shipping for ms in result.latencies_ms]
    return float(np.median(taken)) if taken else None


def _blamed(operators: Sequence[OperatorComparison]) -> Row:
    """How many operators introduce error and are masked, null without rows, and the one to look at first."""
    worst = worst_operator(operators)
    introduced = {row.operator.index for row in operators if row.verdict == "introduced"}
    masked = {row.operator.index for row in operators if row.status == "masked"}
    return {
        "operators_introduced": len(introduced) if operators else None,
        "operators_masked": len(masked) if operators else None,
        "worst_operator": worst.operator.name if worst else None,
        "worst_operator_verdict": worst.verdict if worst else None,
        "worst_operator_introduced_snr_db": worst.introduced.snr_db if worst else None,
        "worst_operator_effect_snr_db": worst.effect_snr_db if worst else None,
    }


def _log(cell: CellResult) -> str | None:
    """sha256 of the log of what failed, else of the toolchain's last call for the cell."""
    if (own := getattr(cell.error, "log", None)) is not None:
        return own
    logs: list[Blob | None] = [record.log for record in (cell.lowered, cell.quantized, cell.exported) if record]
    return next((log.sha256 for log in logs if log), None)


def _work(run_id: str, cost: CallCost) -> Row:
    """One toolchain call. A name is null where the call does not depend on it."""
    whose: dict[str, str] = dict(zip(SUBJECT, cost.subject, strict=False))
    return {
        "run_id": run_id,
        **{name: whose.get(name) for name in ("model", "scheme", "soc", "device", "backend")},
        "stage": cost.stage,
        "seconds": cost.seconds,
        "peak_bytes": cost.peak_bytes,
    }


def _operators(cell: CellResult) -> Iterator[Row]:
    """A row for every operator, captured sample and reference, compared or not."""
    if cell.comparison is not None and cell.comparison.operators:
        yield from map(_operator, (*cell.comparison.operators, *cell.comparison.other_references))
    elif cell.lowered is not None:
        for sample in range(cell.lowered.operator_samples):
            yield from map(_operator, _not_dumped(cell.lowered, cell.request.measure.references, sample))


def _not_dumped(lowered: LoweredProgram, references: Sequence[str], sample: int) -> Iterator[OperatorComparison]:
    for operator in lowered.operators:
        yield OperatorComparison(operator=operator, sample=sample, status="not_dumped", gap=Gap())
    for other in (each for each in lowered.references if each.name in references):
        rows: list[tuple[Operator, tuple[str, ...], OperatorStatus]] = [
            (row, each.nodes, "not_dumped") for row, each in zip(lowered.operators, other.counterparts, strict=True)
        ]
        for node in other.unclaimed:
            rows.append((node, (node.name,), "no_operator"))
        for row, nodes, status in rows:
            yield OperatorComparison(
                operator=row, sample=sample, status=status, gap=Gap(), reference=other.name, nodes=nodes
            )


def _operator(row: OperatorComparison) -> Row:
    operator, grid = row.operator, row.operator.quantization
    return {
        "operator_index": None if row.status == "no_operator" else operator.index,
        "operator": operator.name,
        "target": operator.target,
        "debug_handle": operator.debug_handle,
        "output_index": operator.output_index,
        "module_path": operator.module_path,
        "stack_trace": operator.stack_trace,
        "source_nodes": operator.source_nodes if row.nodes is None else row.nodes,
        "shape": operator.shape,
        "dtype": operator.dtype,
        "scale": grid.scale if grid else None,
        "zero_point": grid.zero_point if grid else None,
        "axis_order": operator.axis_order,
        "delegated": operator.subgraph is not None,
        "subgraph": operator.subgraph,
        "reference": row.reference,
        "sample": row.sample,
        "status": row.status,
        "nonfinite_actual": row.nonfinite_actual,
        "nonfinite_reference": row.nonfinite_reference,
        "masked_elements": row.masked_elements,
        "masked_by": row.masked_by,
        **_own(row.gap),
        "introduced_mse": row.introduced.mse,
        "introduced_snr_db": row.introduced.snr_db,
        "introduced_max_abs": row.introduced.max_abs,
        "introduced_steps": row.introduced_steps,
        "introduced_spans": row.spans,
        "effect_snr_db": row.effect_snr_db,
        "verdict": row.verdict,
        "why": row.why,
    }


def _outputs(cell: CellResult) -> Iterator[Row]:
    for row in cell.comparison.outputs if cell.comparison else ():
        yield {"rung": row.rung, "reference": "eager"} | dict(_flat(_own(row) | {"gap": _own(row.gap)}))


def _profile(cell: CellResult) -> Iterator[Row]:
    for event in cell.comparison.profile if cell.comparison else ():
        handles, operators = event.debug_handles, event.operators
        yield {
            "program": event.program,
            "same_outputs": event.same_outputs,
            "event_block": event.event_block,
            "event": event.name,
            "kind": event.kind,
            "node": event.node,
            "instruction": event.instruction,
            "unit": event.unit,
            **_own(spread(event.raw)),
            "raw": event.raw,
            "samples": event.samples,
            "debug_handle": handles[0] if len(handles) == 1 else None,
            "debug_handles": handles,
            "operators": [operator.name for operator in operators],
            "op_types": [operator.target for operator in operators],
            "module_paths": [operator.module_path for operator in operators],
            "stack_traces": [operator.stack_trace for operator in operators],
            "delegate": event.subgraph is not None,
            "delegate_backend": event.backend,
            "subgraph": event.subgraph,
            "counted_in": event.counted_in,
        }


def _modules(cell: CellResult) -> Iterator[Row]:
    for row in module_times(cell.comparison.profile if cell.comparison else ()):
        taken = _own(row.spread) if row.spread else dict.fromkeys(_names(Spread))
        yield dict(_flat(_own(row) | {"spread": taken}))


def _metrics(cell: CellResult) -> Iterator[Row]:
    for row in cell.comparison.metrics if cell.comparison else ():
        operator, values = row.operator, _own(row) | {"operator": row.operator and row.operator.name}
        of = (operator.index, operator.debug_handle) if operator else (None, None)
        yield {"operator": values.pop("operator"), "operator_index": of[0], "debug_handle": of[1]} | values


def _delegation(cell: CellResult) -> Iterator[Row]:
    for row in cell.lowered.delegation if cell.lowered else ():
        yield {
            "operator": row.operator,
            "occurrences_delegated": row.delegated,
            "occurrences_not_delegated": row.not_delegated,
            "refusals": row.refusals,
        }


def _audit(cell: CellResult) -> Iterator[Row]:
    """What was asked of the programs and what they are, those that were refused for it too."""
    if isinstance(cell.error, ProgramDiffers):
        yield from map(_own, cell.error.checks)
    elif cell.lowered is not None:
        yield from map(_own, cell.lowered.checks)


def _commands(cell: CellResult) -> Iterator[Row]:
    """Every start of the runner on a device."""
    commands: list[Command] = [result.command for result in cell.capture.execution.results] if cell.capture else []
    if isinstance(cell.error, RunnerFailed):
        commands.append(cell.error.command)
    yield from map(_own, commands)


def _own(record: Any) -> Row:
    """A record's fields by name. `asdict` would copy all that is in them."""
    return {name: getattr(record, name) for name in _names(type(record))}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _flat(row: Row) -> Iterator[tuple[str, Any]]:
    """A row's fields, those of a record in its place."""
    for name, value in row.items():
        yield from value.items() if isinstance(value, dict) else [(name, value)]
