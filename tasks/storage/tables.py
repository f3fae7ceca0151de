"""The tables that people read: one Parquet folder a table, one partition a run, one schema for ever.

`artifacts/tables/<table>/run=<run_id>/part.parquet`; `pandas.read_parquet("artifacts/tables/cells")` reads all runs.
Null is "not defined"; NaN is never stored; units are in the names.
"""
# pyarrow ships no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import EvidenceError, RequestError
from tasks.storage.columns import FLAG, REAL, TEXT, WHOLE, column
from tasks.storage.store import Store

_ROW_GROUP = 8192
"""Rows that are read or skipped together: a run's cells lie in their order, so one cell is in one group or two."""
_CELL = ("run_id", "model", "scheme", "soc", "device", "backend")


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    cell = [(name, pa.string()) for name in _CELL]
    return pa.schema([*cell, *columns])


_spread = [(name, REAL) for name in ("p10", "p50", "p90", "mean", "minimum", "maximum")]
_gap = [("mse", REAL), ("mean_abs", REAL), ("max_abs", REAL), ("snr_db", REAL), ("cosine", REAL)]

TABLES: dict[str, pa.Schema] = {
    "cells": _schema(
        ("stage", TEXT),  # the last stage reached
        ("outcome", TEXT),  # passed out_of_tolerance failed impossible infrastructure
        ("error_type", TEXT),
        ("error", TEXT),
        ("reason", TEXT),  # why impossible, out of tolerance or without operators
        ("weights", TEXT),
        ("export_s", REAL),
        ("quantize_s", REAL),
        ("edge_s", REAL),  # once for all SoCs that were lowered together
        ("lower_s", REAL),
        ("execute_s", REAL),
        ("measured_run", TEXT),  # the run that measured it: an earlier one where its capture was reused
        ("sent_bytes", WHOLE),  # to the device, for this cell
        ("outputs_sha256", TEXT),  # of the final outputs: equal for cells whose outputs are bit-equal
        ("pte_bytes", WHOLE),
        ("debug_pte_bytes", WHOLE),
        ("delegated_nodes", WHOLE),
        ("non_delegated_nodes", WHOLE),
        ("delegated_subgraphs", WHOLE),
        *((name, WHOLE) for name in ("spill_bytes", "fill_bytes", "write_total_bytes", "read_total_bytes")),
        ("program_soc", TEXT),  # what the shipping program's own bytes say
        ("program_arch", TEXT),
        ("program_qnn", TEXT),
        ("operators_total", WHOLE),
        ("operators_compared", WHOLE),
        ("samples", WHOLE),
        ("final_snr_db", REAL),  # the worst output of the worst sample
        ("final_cosine", REAL),
        ("final_max_abs", REAL),
        ("top1_agreement", REAL),
        ("accuracy", REAL),  # share of labelled samples right on the device; null without labels
        ("accuracy_eager", REAL),
        ("latency_p50_ms", REAL),
        ("observer_effect_snr_db", REAL),
        ("worst_rung", TEXT),  # where the final outputs lose most
        ("operators_introduced", WHOLE),
        ("operators_masked", WHOLE),
        ("worst_operator", TEXT),  # of those that introduce error the one that does most to the final outputs
        ("worst_operator_verdict", TEXT),
        ("worst_operator_introduced_snr_db", REAL),
        ("worst_operator_effect_snr_db", REAL),
        *((name, TEXT) for name in ("python", "torch", "executorch", "torchao", "qnn")),
        ("log", TEXT),  # sha256 of the log of what failed, else of the toolchain's last call
        ("verb", TEXT),  # what made the run: run, recompare
        ("farm", TEXT),  # null without one
        ("model_digest", TEXT),  # of its configuration and of the code and files behind it
        ("scheme_digest", TEXT),
        ("soc_digest", TEXT),
        ("request_digest", TEXT),  # of what was measured and tolerated, and of the backend
    ),
    "operators": _schema(
        ("operator_index", WHOLE),  # null for another reference's node that no operator stands for
        ("operator", TEXT),
        ("target", TEXT),
        ("debug_handle", WHOLE),
        ("output_index", WHOLE),
        ("module_path", TEXT),
        ("stack_trace", TEXT),
        ("source_nodes", pa.list_(TEXT)),  # what it stands for in that row's reference; of `edge`, what torch traced
        ("shape", pa.list_(WHOLE)),
        ("dtype", TEXT),
        ("scale", pa.list_(REAL)),
        ("zero_point", pa.list_(WHOLE)),
        ("axis_order", pa.list_(WHOLE)),
        ("delegated", FLAG),
        ("subgraph", WHOLE),
        ("reference", TEXT),  # edge exported quantized
        ("sample", WHOLE),
        ("status", TEXT),
        ("nonfinite_actual", WHOLE),
        ("nonfinite_reference", WHOLE),
        ("masked_elements", WHOLE),  # they differ and no reader reads them
        ("masked_by", pa.list_(TEXT)),
        *_gap,  # total: against the reference's own run from the model's input
        ("introduced_mse", REAL),  # against the reference operator on the device's own inputs
        ("introduced_snr_db", REAL),
        ("introduced_max_abs", REAL),
        ("introduced_steps", REAL),  # the largest, in steps of the device's grid
        ("introduced_spans", pa.list_(TEXT)),  # operators before it that the device did not show
        ("effect_snr_db", REAL),  # the final outputs with the introduced error alone
        ("verdict", TEXT),  # exact within_grid introduced inherited blind
        ("why", TEXT),  # why the operator could not be made again on the host
    ),
    "outputs": _schema(
        ("rung", TEXT),
        ("reference", TEXT),
        ("sample", WHOLE),
        ("sample_name", TEXT),
        ("output_index", WHOLE),
        ("output", TEXT),
        ("shape", pa.list_(WHOLE)),
        ("status", TEXT),
        *_gap,
        ("previous_rung", TEXT),
        ("previous_snr_db", REAL),  # against the rung before
        ("label", WHOLE),
        ("top1_reference", WHOLE),
        ("top1_actual", WHOLE),
    ),
    "profile": _schema(
        ("program", TEXT),  # shipping or profile
        ("same_outputs", FLAG),  # the program's final outputs are the shipping program's, bit by bit
        ("event_block", TEXT),
        ("event", TEXT),
        ("kind", TEXT),  # tasks.numerics.timing.KINDS
        ("node", TEXT),  # what the delegate calls the operator
        ("instruction", WHOLE),
        ("unit", TEXT),
        ("count", WHOLE),
        *_spread,
        ("raw", pa.list_(REAL)),
        ("samples", pa.list_(WHOLE)),  # for each of raw the evaluation sample; empty while loading
        ("debug_handle", WHOLE),  # where there is exactly one
        ("debug_handles", pa.list_(WHOLE)),
        ("operators", pa.list_(TEXT)),
        ("op_types", pa.list_(TEXT)),
        ("module_paths", pa.list_(TEXT)),
        ("stack_traces", pa.list_(TEXT)),
        ("delegate", FLAG),
        ("delegate_backend", TEXT),
        ("subgraph", WHOLE),
        ("counted_in", pa.list_(TEXT)),  # where the work of an operator without cycles of its own is counted
    ),
    "modules": _schema(
        ("program", TEXT),
        ("unit", TEXT),
        ("module_path", TEXT),  # empty for the whole model
        ("depth", WHOLE),
        ("operators", pa.list_(TEXT)),
        ("count", WHOLE),
        *_spread,  # an inference: the module with all that is inside it
        ("own_mean", REAL),  # what of the mean belongs to none of the modules inside it
        ("share", REAL),  # of the whole model's
        ("counted_in", TEXT),  # the module in whose time it is, where it has none of its own
    ),
    "metrics": _schema(
        ("operator", TEXT),  # null for a final output
        ("operator_index", WHOLE),
        ("debug_handle", WHOLE),
        ("output_index", WHOLE),
        ("sample", WHOLE),
        ("rung", TEXT),
        ("reference", TEXT),
        ("metric", TEXT),
        ("value", REAL),
        ("problem", TEXT),  # why a user's own metric gave no number
    ),
    "delegation": _schema(
        ("operator", TEXT),
        ("occurrences_delegated", WHOLE),
        ("occurrences_not_delegated", WHOLE),
        ("refusals", pa.list_(TEXT)),
    ),
    "audit": _schema(
        ("program", TEXT),  # shipping, debug
        ("subgraph", WHOLE),
        ("check", TEXT),
        ("subject", TEXT),  # which tensor
        ("asked", TEXT),
        ("got", TEXT),
        ("status", TEXT),  # met differs unread
        ("reason", TEXT),  # why it could not be read
    ),
    "probe": _schema(
        ("side", TEXT),  # input, output
        ("mistake", TEXT),
        ("sample", WHOLE),
        ("status", TEXT),  # passed failed blind unclear refused
        ("relative_error", REAL),  # squared error over energy, the model as it is
        ("relative_error_mistaken", REAL),  # the same after the mistake
        ("detail", TEXT),
    ),
    "work": _schema(  # toolchain calls, shared by the cells whose names they have
        ("stage", TEXT),  # export quantize edge lower compare
        ("seconds", REAL),
        ("peak_bytes", WHOLE),  # resident; of lower beyond the edge program that it was forked from
    ),
    "commands": _schema(
        ("argv", pa.list_(TEXT)),
        ("exit_code", WHOLE),
        ("seconds", REAL),
    ),
    "trends": _schema(
        ("farm", TEXT),
        ("series", TEXT),
        ("operator", TEXT),  # null for a series of the cell
        ("unit", TEXT),
        ("value", REAL),
        ("nights", WHOLE),  # in the baseline
        ("median", REAL),
        ("mad", REAL),
        ("floor", REAL),  # in the series' unit
        ("verdict", TEXT),  # steady regressed still_bad improved new no_baseline undefined
        ("first_bad_run", TEXT),
        ("changed", pa.list_(TEXT)),  # what differs between the last good and the first bad night
        ("runs", pa.list_(TEXT)),  # the nights up to this one, and
        ("values", pa.list_(REAL)),  # the series' value in each
    ),
}


def write(store: Store, run_id: str, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one run's rows of one table, in their order, in place of any it had; no rows still make a file.

    NaN becomes null.

    Raises ValueError for a run id that is no file name, an unknown table, a row without exactly the table's columns
    or of another run, and an infinite number: no metric may be infinite. Raises TypeError for a value of another
    type than its column's; nothing is converted but NumPy's scalars and whole numbers in a real column.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise ValueError(f"a run id is letters, digits, '.', '_' and '-', not {run_id!r}")
    schema = schema_of(table)
    names = {*schema.names}
    for index, row in enumerate(rows):
        _check_row(row, names, run_id, f"{table} row {index}")
    columns = [column([row[field.name] for row in rows], field.type, f"{table}.{field.name}") for field in schema]
    store.files.write(_name(table, run_id), encoded(pa.Table.from_arrays(columns, schema=schema)))


def encoded(rows: pa.Table) -> bytes:
    """One run's rows of a table as the bytes of its file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=_ROW_GROUP)
    return sink.getvalue().to_pybytes()


def join(store: Store, run_id: str, table: str, parts: Sequence[Store]) -> None:
    """Write one run's rows of one table from those that other places have of it, in the order of `parts`.

    One part at a time is in memory. Raises EvidenceError for a part that cannot be read.
    """
    schema = schema_of(table)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(_read_part(part, _name(table, run_id), schema))
    store.files.write(_name(table, run_id), sink.getvalue().to_pybytes())


def rows(store: Store, table: str, run_id: str) -> list[dict[str, Any]]:
    """One run's rows of a table as they were given to `write`. Raises EvidenceError if they cannot be read."""
    return _read_part(store, _name(table, run_id), schema_of(table)).to_pylist()


def read(store: Store, table: str, run_id: str | None = None) -> pandas.DataFrame:
    """One run's rows of a table, or all runs' in the order of their ids: exactly the table's columns.

    pandas has it that whole numbers with a null among them come as floats. A run of an earlier version has no rows of
    a table that came later. Raises RequestError for an unknown run, and EvidenceError for a file that cannot be read.
    """
    schema = schema_of(table)
    known = _runs_with(store, table)
    if run_id is not None and run_id not in known and run_id in runs(store):
        return schema.empty_table().to_pandas()
    if run_id is not None and run_id not in known:
        place = store.display_path(f"tables/{table}")
        raise RequestError(f"no run {run_id!r} in {place}, there are: {', '.join(known) or 'none'}")
    wanted = known if run_id is None else [run_id]
    parts = [_read_part(store, _name(table, run), schema) for run in wanted]
    return pa.concat_tables([schema.empty_table(), *parts]).to_pandas()


def tsv(store: Store, table: str, run_id: str) -> str:
    """One run's rows of a table as tab-separated text: a line of names, a line a row; lists as JSON, null empty."""
    frame = read(store, table, run_id)
    for field in schema_of(table):
        if field.type == WHOLE:
            frame[field.name] = frame[field.name].astype("Int64")
        elif pa.types.is_list(field.type):
            # NumPy's own floats print as themselves only after `tolist`.
            frame[field.name] = [None if row is None else json.dumps(row.tolist()) for row in frame[field.name]]
    return frame.to_csv(sep="\t", index=False)


def runs(store: Store) -> list[str]:
    """Ids of the runs that have their `cells`, oldest first (run ids sort by start time)."""
    return _runs_with(store, "cells")


def parts(store: Store, table: str, runs: Collection[str] | None = None) -> dict[str, Path]:
    """A file of this machine for each run, of `runs` or of all, that has the table; oldest first."""
    known = (run for run in _runs_with(store, table) if runs is None or run in runs)
    return {run: store.files.local(_name(table, run)) for run in known}


def schema_of(table: str) -> pa.Schema:
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}: it is one of {', '.join(TABLES)}")
    return TABLES[table]


def _name(table: str, run_id: str) -> str:
    return f"tables/{table}/run={run_id}/part.parquet"


def _runs_with(store: Store, table: str) -> list[str]:
    parts = (re.fullmatch(r".*/run=([^/]+)/part\.parquet", name) for name in store.files.names(f"tables/{table}"))
    return sorted(part[1] for part in parts if part)


def _read_part(store: Store, name: str, schema: pa.Schema) -> pa.Table:
    try:
        with pq.ParquetFile(pa.BufferReader(store.files.read(name))) as file:
            part = file.read()
            if part.column_names[: len(_CELL)] != list(_CELL):
                raise ValueError(f"not a table of cells: {part.column_names[:8]}")
            # A run of an earlier version lacks columns that came later; they are null in it.
            for column in (each for each in schema.names if each not in part.column_names):
                part = part.append_column(column, pa.nulls(part.num_rows, schema.field(column).type))
            # Refuses columns that the table does not have; all else it changes is what Parquet calls a list's items.
            return part.select([*schema.names, *(set(part.column_names) - set(schema.names))]).cast(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise EvidenceError(
            f"{store.display_path(name)} cannot be read, remove it to leave its run out: {error}"
        ) from error


def _check_row(row: Mapping[str, Any], names: set[str], run_id: str, where: str) -> None:
    if {*row} != names:
        missing, unknown = sorted(names - {*row}), sorted({*row} - names)
        raise ValueError(f"{where} must have exactly the table's columns: missing {missing}, unknown {unknown}")
    if row["run_id"] != run_id:
        raise ValueError(f"{where} is of run {row['run_id']!r} and not of {run_id!r}")
