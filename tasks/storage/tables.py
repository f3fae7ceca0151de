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


_text, _real, _whole, _flag = TEXT, REAL, WHOLE, FLAG
_spread = [(name, _real) for name in ("p10", "p50", "p90", "mean", "minimum", "maximum")]
_gap = [("mse", _real), ("mean_abs", _real), ("max_abs", _real), ("snr_db", _real), ("cosine", _real)]

TABLES: dict[str, pa.Schema] = {
    "cells": _schema(
        ("stage", _text),  # the last stage reached
        ("outcome", _text),  # passed out_of_tolerance failed impossible infrastructure
        ("error_type", _text),
        ("error", _text),
        ("reason", _text),  # why impossible, out of tolerance or without operators
        ("weights", _text),
        ("export_s", _real),
        ("quantize_s", _real),
        ("edge_s", _real),  # once for all SoCs that were lowered together
        ("lower_s", _real),
        ("execute_s", _real),
        ("measured_run", _text),  # the run that measured it: an earlier one where its capture was reused
        ("sent_bytes", _whole),  # to the device, for this cell
        ("outputs_sha256", _text),  # of the final outputs: equal for cells whose outputs are bit-equal
        ("pte_bytes", _whole),
        ("debug_pte_bytes", _whole),
        ("delegated_nodes", _whole),
        ("non_delegated_nodes", _whole),
        ("delegated_subgraphs", _whole),
        *((name, _whole) for name in ("spill_bytes", "fill_bytes", "write_total_bytes", "read_total_bytes")),
        ("program_soc", _text),  # what the shipping program's own bytes say
        ("program_arch", _text),
        ("program_qnn", _text),
        ("operators_total", _whole),
        ("operators_compared", _whole),
        ("samples", _whole),
        ("final_snr_db", _real),  # the worst output of the worst sample
        ("final_cosine", _real),
        ("final_max_abs", _real),
        ("top1_agreement", _real),
        ("accuracy", _real),  # share of labelled samples right on the device; null without labels
        ("accuracy_eager", _real),
        ("latency_p50_ms", _real),
        ("observer_effect_snr_db", _real),
        ("worst_rung", _text),  # where the final outputs lose most
        ("operators_introduced", _whole),
        ("operators_masked", _whole),
        ("worst_operator", _text),  # of those that introduce error the one that does most to the final outputs
        ("worst_operator_verdict", _text),
        ("worst_operator_introduced_snr_db", _real),
        ("worst_operator_effect_snr_db", _real),
        *((name, _text) for name in ("python", "torch", "executorch", "torchao", "qnn")),
        ("log", _text),  # sha256 of the log of what failed, else of the toolchain's last call
        ("verb", _text),  # what made the run: run, recompare
        ("farm", _text),  # null without one
        ("model_digest", _text),  # of its configuration and of the code and files behind it
        ("scheme_digest", _text),
        ("soc_digest", _text),
        ("request_digest", _text),  # of what was measured and tolerated, and of the backend
    ),
    "operators": _schema(
        ("operator_index", _whole),  # null for another reference's node that no operator stands for
        ("operator", _text),
        ("target", _text),
        ("debug_handle", _whole),
        ("output_index", _whole),
        ("module_path", _text),
        ("stack_trace", _text),
        ("source_nodes", pa.list_(_text)),  # what it stands for in that row's reference; of `edge`, what torch traced
        ("shape", pa.list_(_whole)),
        ("dtype", _text),
        ("scale", pa.list_(_real)),
        ("zero_point", pa.list_(_whole)),
        ("axis_order", pa.list_(_whole)),
        ("delegated", _flag),
        ("subgraph", _whole),
        ("reference", _text),  # edge exported quantized
        ("sample", _whole),
        ("status", _text),
        ("nonfinite_actual", _whole),
        ("nonfinite_reference", _whole),
        ("masked_elements", _whole),  # they differ and no reader reads them
        ("masked_by", pa.list_(_text)),
        *_gap,  # total: against the reference's own run from the model's input
        ("introduced_mse", _real),  # against the reference operator on the device's own inputs
        ("introduced_snr_db", _real),
        ("introduced_max_abs", _real),
        ("introduced_steps", _real),  # the largest, in steps of the device's grid
        ("introduced_spans", pa.list_(_text)),  # operators before it that the device did not show
        ("effect_snr_db", _real),  # the final outputs with the introduced error alone
        ("verdict", _text),  # exact within_grid introduced inherited blind
        ("why", _text),  # why the operator could not be made again on the host
    ),
    "outputs": _schema(
        ("rung", _text),
        ("reference", _text),
        ("sample", _whole),
        ("sample_name", _text),
        ("output_index", _whole),
        ("output", _text),
        ("shape", pa.list_(_whole)),
        ("status", _text),
        *_gap,
        ("previous_rung", _text),
        ("previous_snr_db", _real),  # against the rung before
        ("label", _whole),
        ("top1_reference", _whole),
        ("top1_actual", _whole),
    ),
    "profile": _schema(
        ("program", _text),  # shipping or profile
        ("same_outputs", _flag),  # the program's final outputs are the shipping program's, bit by bit
        ("event_block", _text),
        ("event", _text),
        ("kind", _text),  # tasks.numerics.timing.KINDS
        ("node", _text),  # what the delegate calls the operator
        ("instruction", _whole),
        ("unit", _text),
        ("count", _whole),
        *_spread,
        ("raw", pa.list_(_real)),
        ("samples", pa.list_(_whole)),  # for each of raw the evaluation sample; empty while loading
        ("debug_handle", _whole),  # where there is exactly one
        ("debug_handles", pa.list_(_whole)),
        ("operators", pa.list_(_text)),
        ("op_types", pa.list_(_text)),
        ("module_paths", pa.list_(_text)),
        ("stack_traces", pa.list_(_text)),
        ("delegate", _flag),
        ("delegate_backend", _text),
        ("subgraph", _whole),
        ("counted_in", pa.list_(_text)),  # where the work of an operator without cycles of its own is counted
    ),
    "modules": _schema(
        ("program", _text),
        ("unit", _text),
        ("module_path", _text),  # empty for the whole model
        ("depth", _whole),
        ("operators", pa.list_(_text)),
        ("count", _whole),
        *_spread,  # an inference: the module with all that is inside it
        ("own_mean", _real),  # what of the mean belongs to none of the modules inside it
        ("share", _real),  # of the whole model's
        ("counted_in", _text),  # the module in whose time it is, where it has none of its own
    ),
    "metrics": _schema(
        ("operator", _text),  # null for a final output
        ("operator_index", _whole),
        ("debug_handle", _whole),
        ("output_index", _whole),
        ("sample", _whole),
        ("rung", _text),
        ("reference", _text),
        ("metric", _text),
        ("value", _real),
        ("problem", _text),  # why a user's own metric gave no number
    ),
    "delegation": _schema(
        ("operator", _text),
        ("occurrences_delegated", _whole),
        ("occurrences_not_delegated", _whole),
        ("refusals", pa.list_(_text)),
    ),
    "audit": _schema(
        ("program", _text),  # shipping, debug
        ("subgraph", _whole),
        ("check", _text),
        ("subject", _text),  # which tensor
        ("asked", _text),
        ("got", _text),
        ("status", _text),  # met differs unread
        ("reason", _text),  # why it could not be read
    ),
    "probe": _schema(
        ("side", _text),  # input, output
        ("mistake", _text),
        ("sample", _whole),
        ("status", _text),  # passed failed blind unclear refused
        ("relative_error", _real),  # squared error over energy, the model as it is
        ("relative_error_mistaken", _real),  # the same after the mistake
        ("detail", _text),
    ),
    "work": _schema(  # toolchain calls, shared by the cells whose names they have
        ("stage", _text),  # export quantize edge lower compare
        ("seconds", _real),
        ("peak_bytes", _whole),  # resident; of lower beyond the edge program that it was forked from
    ),
    "commands": _schema(
        ("argv", pa.list_(_text)),
        ("exit_code", _whole),
        ("seconds", _real),
    ),
    "trends": _schema(
        ("farm", _text),
        ("series", _text),
        ("operator", _text),  # null for a series of the cell
        ("unit", _text),
        ("value", _real),
        ("nights", _whole),  # in the baseline
        ("median", _real),
        ("mad", _real),
        ("floor", _real),  # in the series' unit
        ("verdict", _text),  # steady regressed still_bad improved new no_baseline undefined
        ("first_bad_run", _text),
        ("changed", pa.list_(_text)),  # what differs between the last good and the first bad night
        ("runs", pa.list_(_text)),  # the nights up to this one, and
        ("values", pa.list_(_real)),  # the series' value in each
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
        place = store.shown(f"tables/{table}")
        raise RequestError(f"no run {run_id!r} in {place}, there are: {', '.join(known) or 'none'}")
    wanted = known if run_id is None else [run_id]
    parts = [_read_part(store, _name(table, run), schema) for run in wanted]
    return pa.concat_tables([schema.empty_table(), *parts]).to_pandas()


def tsv(store: Store, table: str, run_id: str) -> str:
    """One run's rows of a table as tab-separated text: a line of names, a line a row; lists as JSON, null empty."""
    frame = read(store, table, run_id)
    for field in schema_of(table):
        if field.type == _whole:
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
        raise EvidenceError(f"{store.shown(name)} cannot be read, remove it to leave its run out: {error}") from error


def _check_row(row: Mapping[str, Any], names: set[str], run_id: str, where: str) -> None:
    if {*row} != names:
        missing, unknown = sorted(names - {*row}), sorted({*row} - names)
        raise ValueError(f"{where} must have exactly the table's columns: missing {missing}, unknown {unknown}")
    if row["run_id"] != run_id:
        raise ValueError(f"{where} is of run {row['run_id']!r} and not of {run_id!r}")
