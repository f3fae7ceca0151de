"""A run as records of the PyTorch benchmark database, version 3, which PyTorch's HUD shows: a record per metric.

A cell that did not pass has one record `FAILURE_REPORT`, as the database expects of a failed job. A cell that regressed
has one record `REGRESSED`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import Outcome
from qnnsweep.tasks.report.counts import cell_key, count
from qnnsweep.tasks.report.formats import cells as of

_METRICS = {
    "final_snr_db": "final_snr_db_limit",
    "mean_snr_db": None,
    "device_snr_db": None,
    "top1_agreement": "top1_agreement_limit",
    "accuracy": None,
    "operators_introduced": "operators_introduced_limit",
    "latency_p50_ms": None,
    "pte_bytes": None,
    "spill_bytes": None,
    "read_total_bytes": None,
    "write_total_bytes": None,
    "delegated_nodes": None,
    "non_delegated_nodes": None,
    "lower_s": None,
}
"""The columns of the table `cells` that are metrics, with the columns that have their limits."""

_CONCLUSIONS: dict[Outcome, str] = {"passed": "success", "impossible": "skipped"}


def benchmark_database(run: RunFacts, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the records of a run as a JSON list."""
    worse = count(tables["cells"], tables["trends"]).regressed
    records = [record for cell in tables["cells"] for record in _records(run, cell, worse.get(cell_key(cell), ()))]
    return json.dumps(records, indent=1) + "\n"


def _records(run: RunFacts, cell: Row, worse: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the records of a cell. `worse`: the rows of `trends` of a cell that regressed."""
    outcome = of.outcome(cell)
    if worse:
        series = {"series": list(dict.fromkeys(row["series"] for row in worse))}
        yield _record(run, cell, {"name": "REGRESSED", "benchmark_values": [1], "extra_info": series})
    if outcome not in _CONCLUSIONS:
        about = {"failure_type": cell["stage"] or outcome, "outcome": outcome, "message": of.problem(cell)}
        yield _record(run, cell, {"name": "FAILURE_REPORT", "benchmark_values": [0], "extra_info": about})
    for name, limit in _METRICS.items():
        if cell[name] is not None:
            target = cell[limit] if limit else None
            about = {"timed_on": cell["timed_on"]} if name == "latency_p50_ms" else {}
            metric = {"name": name, "benchmark_values": [cell[name]], "target_value": target, "extra_info": about}
            yield _record(run, cell, metric)


def _record(run: RunFacts, cell: Row, metric: dict[str, Any]) -> dict[str, Any]:
    versions = {name: cell[name] for name in ("executorch", "qnn") if cell[name] is not None}
    about = {
        "app_type": "qnnsweep",
        "git_sha": cell["executorch_commit"],
        "job_conclusion": _CONCLUSIONS.get(of.outcome(cell), "failure"),
        "run_id": run.run_id,
        "started": run.started,
        "soc": cell["soc"],
        **of.other_toolchain(cell),
        **versions,
    }
    return {
        "benchmark": {"name": "qnnsweep", "mode": "inference", "dtype": cell["scheme"], "extra_info": about},
        "model": {"name": cell["model"], "type": "OSS model", "backend": cell["backend"]},
        "metric": metric,
        "runners": [{"name": cell["device"], "type": cell["soc"]}],
    }
