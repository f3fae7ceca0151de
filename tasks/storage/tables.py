"""The tables that people read: one Parquet folder a table, one partition a run, one schema for ever.

`artifacts/tables/<table>/run=<run_id>/part.parquet`; `pandas.read_parquet("artifacts/tables/cells")` reads all runs.
Null is "not defined"; NaN is never stored; units are in the names.
"""

from __future__ import annotations

import pyarrow as pa


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    cell = [(name, pa.string()) for name in ("run_id", "model", "scheme", "soc", "device", "backend")]
    return pa.schema([*cell, *columns])


_text, _real, _whole, _flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
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
        ("lower_s", _real),
        ("execute_s", _real),
        ("pte_bytes", _whole),
        ("debug_pte_bytes", _whole),
        ("delegated_nodes", _whole),
        ("non_delegated_nodes", _whole),
        ("delegated_subgraphs", _whole),
        ("spill_bytes", _whole),
        ("fill_bytes", _whole),
        ("write_total_bytes", _whole),
        ("read_total_bytes", _whole),
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
        ("worst_operator", _text),
        ("python", _text),
        ("torch", _text),
        ("executorch", _text),
        ("torchao", _text),
        ("qnn", _text),
        ("log", _text),  # sha256 of the log of the last stage that wrote one
    ),
    "operators": _schema(
        ("operator_index", _whole),
        ("operator", _text),
        ("target", _text),
        ("debug_handle", _whole),
        ("output_index", _whole),
        ("module_path", _text),
        ("stack_trace", _text),
        ("source_nodes", pa.list_(_text)),
        ("shape", pa.list_(_whole)),
        ("dtype", _text),
        ("scale", pa.list_(_real)),
        ("zero_point", pa.list_(_whole)),
        ("axis_order", pa.list_(_whole)),
        ("delegated", _flag),
        ("reference", _text),
        ("sample", _whole),
        ("status", _text),
        *_gap,
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
        ("label", _whole),
        ("top1_reference", _whole),
        ("top1_actual", _whole),
    ),
    "profile": _schema(
        ("event", _text),
        ("debug_handle", _whole),
        ("delegate", _flag),
        ("unit", _text),
        ("count", _whole),
        ("p10", _real),
        ("p50", _real),
        ("p90", _real),
        ("mean", _real),
        ("minimum", _real),
        ("maximum", _real),
    ),
    "delegation": _schema(
        ("operator", _text),
        ("occurrences_delegated", _whole),
        ("occurrences_not_delegated", _whole),
        ("refusals", pa.list_(_text)),
    ),
    "commands": _schema(
        ("argv", pa.list_(_text)),
        ("exit_code", _whole),
        ("seconds", _real),
    ),
}
