"""Sample tables of one run: cells of every outcome with their evidence, and trends over fifty nights."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any

from qnnsweep.tasks.comparison.details import MOST_DETAILS
from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import CELL_COLUMNS, TABLES, Row
from qnnsweep.tasks.records.vocabulary import PREVIOUS_RUNG, Cause, Rung
from qnnsweep.tasks.storage.tables import schema_of
from tests.sample_records import TOOLCHAIN

RUN = RunFacts(
    run_id="20261121T0230Z-4f1c",
    started="2026-11-21T02:30:11+00:00",
    seconds=2_731.4,
    command=("qnnsweep", "run", "model=efficientnet_lite0,minilm_l6,digits", "scheme=8a8w,16a8w,fp16", "soc=a,b c"),
    toolchain_calls=21,
    reused=9,
    toolchain=TOOLCHAIN,
    tables="artifacts/tables",
    report="artifacts/runs/20261121T0230Z-4f1c/report.html",
)
LOG = "0" * 63 + "a"
TARGETS = ("aten.convolution.default", "aten.hardtanh.default", "aten.add.Tensor", "aten.constant_pad_nd.default")


def table(name: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows with all columns of the table. Columns without a value are null."""
    return [{column: row.get(column) for column in schema_of(name).names} for row in rows]


def cell(model: str, scheme: str, soc: str, **facts: Any) -> dict[str, Any]:
    names = {"model": model, "scheme": scheme, "soc": soc, "device": "local", "backend": "qnn", "toolchain": "default"}
    versions = {
        "executorch": TOOLCHAIN.executorch,
        "executorch_commit": TOOLCHAIN.executorch_commit,
        "qnn": TOOLCHAIN.qnn,
    }
    return {"run_id": RUN.run_id} | names | versions | {"outcome": "passed", "stage": "compare", "log": LOG} | facts


def identity_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in CELL_COLUMNS}


def diagnosis(snr: float) -> str:
    return (
        f"{snr:.1f} dB (the lowest of 8 outputs), of which 76 % are the grids of 6 additions (layers.0.attention "
        "and 5 more): the grid reaches to -65535, so its step is 1, and 2 to 19 of 65536 values are used. "
        f"Compared with the same program on the host, the device is at {snr + 8:.1f} dB."
    )


def measured(chance: random.Random, snr: float) -> dict[str, Any]:
    return {
        "weights": "pretrained",
        "export_s": 4.1,
        "quantize_s": chance.uniform(5, 9),
        "lower_s": chance.uniform(40, 90),
        "execute_s": chance.uniform(1, 7),
        "pte_bytes": chance.randrange(4_000_000, 9_000_000),
        "debug_pte_bytes": 9_412_608,
        "delegated_nodes": 148,
        "non_delegated_nodes": 2,
        "delegated_subgraphs": 1,
        "spill_bytes": 0,
        "fill_bytes": 0,
        "write_total_bytes": 301_056,
        "read_total_bytes": 5_771_264,
        "operators_total": 80,
        "operators_compared": 71,
        "samples": 8,
        "final_difference": "finite",
        "final_snr_db": snr,
        "mean_snr_db": snr + 1.5,
        "mean_snr_db_low": snr + 0.5,
        "mean_snr_db_high": snr + 2.75,
        "device_difference": "finite",
        "device_snr_db": snr + 8,
        "final_cosine": 1 - 10 ** (-snr / 10) / 2,
        "final_max_abs": chance.uniform(0.01, 0.5),
        "top1_agreement": 1.0 if snr > 20 else 0.875,
        "final_snr_db_limit": 20.0,
        "top1_agreement_limit": 0.9,
        "operators_introduced_limit": 1,
        "operators_introduced": 1,
        "missed_limits": [],
        "latency_p50_ms": chance.uniform(0.8, 9),
        "timed_on": "device",
        "observer_effect": "none",
        "worst_rung": "edge",
        "worst_operator": "aten_convolution_default_21",
        "worst_operator_verdict": "introduced",
        "worst_operator_cause": "device",
        "worst_operator_introduced_snr_db": 13.0,
        "worst_operator_effect_snr_db": snr + 1,
        "diagnosis": diagnosis(snr),
    }


def operators(identity: dict[str, Any], count: int, chance: random.Random) -> Iterable[dict[str, Any]]:
    for index in range(count):
        target = TARGETS[index % len(TARGETS)]
        compared = index % 9 != 4
        snr = 70 - 0.4 * index + chance.gauss(0, 4) - (60 if index == 21 and identity["scheme"] == "8a8w" else 0)
        introduced = snr + 8
        verdict = "grid" if index % 7 == 2 else "within_grid" if snr > 40 else "inherited"
        if index == 21:
            introduced, verdict = (13.0, "introduced") if identity["scheme"] == "8a8w" else (introduced, "biased")
        parts = {
            "verdict": verdict,
            "inherited_snr_db": snr + 3,
            "grid_snr_db": snr + 6 if identity["scheme"] != "fp16" else None,
            "introduced_mse": chance.random() * 1e-6,
            "introduced_snr_db": introduced,
            "introduced_channel_snr_db": introduced - abs(chance.gauss(0, 3)),
            "introduced_steps": abs(chance.gauss(0, 2)),
            "introduced_mean_steps": chance.gauss(0, 0.05),
            "introduced_gain": 1 + chance.gauss(0, 1e-3),
            "clipped_elements": max(0, index % 11 - 7),
            "codes_used": 256 - index,
            "effect_snr_db": introduced + 20,
        }
        yield (
            identity
            | (parts if compared else {"verdict": "blind"})
            | {
                "operator_index": index,
                "operator": f"{target.replace('.', '_')}_{index}" if index != 21 else "aten_convolution_default_21",
                "target": target,
                "debug_handle": index + 1 if compared else None,
                "output_index": 0,
                "module_path": f"features.{index // 8}.block.{index % 8}",
                "stack_trace": f'File "/net.py", line {index}, in forward\n    x = self.layers[{index}](x)',
                "reads": [index - 1] if index else [],
                "shape": [1, 32, 112 >> (index // 24), 112 >> (index // 24)],
                "dtype": "uint16" if identity["scheme"] == "16a8w" else "uint8",
                "delegated": index > 1,
                "reference": "edge",
                "sample": 0,
                "status": "compared" if compared else ("masked", "constant", "not_dumped")[index // 9 % 3],
                "mse": chance.random() * 1e-5 if compared else None,
                "mean_abs": chance.random() * 1e-3 if compared else None,
                "max_abs": chance.random() if compared else None,
                "snr_db": snr if compared else None,
                "cosine": 1 - chance.random() * 1e-4 if compared else None,
            }
        )


SHARES: dict[Cause, float] = {
    "graph": 0.0, "weights": 0.21, "bias": 0.0, "clipping": 0.09, "resolution": 0.63, "overflow": 0.0, "device": 0.05,
    "observer": 0.0, "unexplained": 0.02,
}  # fmt: skip
"""The shares of the totals of every final output."""


def budget(identity: dict[str, Any], rows: list[dict[str, Any]], final: float) -> Iterable[dict[str, Any]]:
    """Yield the totals of one final output, and then every operator with one cause, the largest share first."""
    output = identity | {"output_index": 0, "output": "logits", "sample": 2, "without_snr_db": None}
    for cause, share in SHARES.items():
        alone = final - 10 * math.log10(share) if share > 0 and cause != "unexplained" else None
        yield output | {"cause": cause, "share": share, "share_error": 0.0, "alone_snr_db": alone}
    causes = [cause for cause, share in SHARES.items() if share and cause != "unexplained"]
    for rank, row in enumerate(reversed(rows)):
        share = 0.42 * 0.7**rank
        yield output | {
            "cause": causes[(rank + 2) % len(causes)],
            "operator": row["operator"],
            "operator_index": row["operator_index"],
            "module_path": row["module_path"],
            "share": share,
            "share_error": 0.0 if rank < 8 else 0.2 * share,
            "alone_snr_db": final - 10 * math.log10(share),
        }


def details(identity: dict[str, Any], rows: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield the distribution of the error of the first operators that were compared."""
    for row in [row for row in rows if row["status"] == "compared"][:MOST_DETAILS]:
        index = row["operator_index"]
        channels = [0.2 + (number * 7 + index) % 11 / 40 for number in range(32)]
        heat = [abs(7.5 - row) * abs(7.5 - column) / 100 for row in range(16) for column in range(16)]
        yield identity | {
            "operator": row["operator"],
            "operator_index": index,
            "sample": 0,
            "unit": "steps",
            "largest_error": 2.5,
            "histogram": [max(0, 900 - 80 * abs(step - 16)) for step in range(33)],
            "channel_axis": 1,
            "channels": 32,
            "channel_errors": [*channels[:21], 1.75, *channels[22:]],
            "heat_rows": 16,
            "heat_columns": 16,
            "heat": heat,
            "value_least": -0.75,
            "value_largest": 6.0,
            "grid_least": -1.0,
            "grid_largest": 7.0,
        }


def evidence(identity: dict[str, Any], final: float, chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    rungs: dict[Rung, float] = {
        "exported": 138.2, "lowered": 120.0,
        "edge": final + 4, "designed": final + 1, "device": final, "quantized": final - 8,
    }  # fmt: skip
    outputs = [
        identity
        | {"rung": rung, "reference": "eager", "sample": sample, "sample_name": f"flower-{sample}", "output": "logits"}
        | {"output_index": 0, "shape": [1, 1000], "status": "compared", "snr_db": snr + abs(chance.gauss(0, 2))}
        | {"previous_rung": PREVIOUS_RUNG.get(rung)}
        | ({"previous_status": "compared", "previous_snr_db": snr + 8} if rung in PREVIOUS_RUNG else {})
        | {"max_abs": chance.random(), "cosine": 0.999, "top1_reference": 985, "top1_actual": 985 - (snr < 15)}
        for rung, snr in rungs.items()
        for sample in range(8)
    ]
    profile = [
        identity
        | {"event": f"aten_convolution_default_{index}:OpId_{index} (cycles)", "unit": "cycles", "count": 8}
        | {"delegate": True, "p10": 90.0 * index, "p50": 100.0 * index, "p90": 120.0 * index, "mean": 101.0 * index}
        for index in range(40)
    ]
    delegation = [
        identity | {"operator": target, "occurrences_delegated": 20, "occurrences_not_delegated": 0, "refusals": []}
        for target in TARGETS
    ]
    delegation[2] |= {"occurrences_not_delegated": 2, "refusals": ["[ERROR] Op add: rank 6 is not supported by HTP"]}
    argv = ["python", "-m", "qnnsweep.tasks.devices.runner_cli", "--model_path", "program.pte", "--iteration", "10"]
    commands = [identity | {"argv": argv, "exit_code": 0, "seconds": 2.31}]
    return {"outputs": outputs, "profile": profile, "delegation": delegation, "commands": commands}


def sweep(cells: list[dict[str, Any]], count: int = 80) -> dict[str, list[Row]]:
    chance = random.Random(7)
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    for row in cells:
        identity = identity_of(row)
        rows["cells"].append(row)
        if row.get("final_snr_db") is not None:
            rows_of_operators = list(operators(identity, count, chance))
            rows["operators"].extend(rows_of_operators)
            rows["details"].extend(details(identity, rows_of_operators))
            rows["budget"].extend(budget(identity, rows_of_operators, row["final_snr_db"]))
            for name, more in evidence(identity, row["final_snr_db"], chance).items():
                rows[name].extend(more)
    return {name: table(name, table_rows) for name, table_rows in rows.items()}


def nightly() -> list[dict[str, Any]]:
    """Return the cells of three models, three schemes and three SoCs, with every kind of failure among them."""
    chance = random.Random(3)
    cells: list[dict[str, Any]] = []
    base = {"fp16": 61.0, "16a8w": 38.0, "8a8w": 23.0}
    for model in ("efficientnet_lite0", "minilm_l6", "digits"):
        for scheme, snr in base.items():
            for soc in ("SM8550", "SM8650", "SM8850"):
                final = snr + chance.uniform(-3, 3) - (9.5 if (model, scheme) == ("minilm_l6", "8a8w") else 0)
                cells.append(cell(model, scheme, soc, **measured(chance, final)))
    for row in cells:
        if (row["model"], row["scheme"]) == ("minilm_l6", "8a8w"):
            reason = f"final_snr_db {row['final_snr_db']:.1f} is below 20.0 (tolerance default)"
            row |= {"outcome": "out_of_tolerance", "reason": reason, "missed_limits": ["final_snr_db"]}
        if row["model"] == "digits":
            row |= {"accuracy": 0.96875, "accuracy_eager": 0.984375, "weights": "trained"}
    nothing = dict.fromkeys(measured(chance, 1.0))
    for number in (3, 4, 5):
        reason = "16a8w needs 16-bit activations in every layer_norm, which v73 lacks; ask for 8a8w or fp16"
        cells[9 + number] |= nothing | {"outcome": "impossible", "stage": "plan", "reason": reason, "log": None}
    message = (
        "[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:217: Graph prepare failed: 0x3ea\n"
        "lower stopped with SIGABRT after 41.2 s. The last lines of its log are above; see the cell's log for the rest."
    )
    for number in (0, 2):
        failed = {"stage": "lower", "outcome": "failed", "error_type": "ToolchainError", "error": message}
        cells[number] |= nothing | failed | {"export_s": 4.1, "quantize_s": 7.7, "weights": "pretrained"}
    lost = "adb: device 'R5CT20' offline after 2 of 3 attempts; reconnect it and run `qnnsweep devices`"
    cells[26] |= nothing | {"stage": "deploy", "outcome": "infrastructure", "error_type": "DeviceError", "error": lost}
    return cells


LOGS = {LOG: "\x1b[31m[WARN]\x1b[0m observers saw 32 samples\n" + "lowering <forward> & friends\n" * 200}

NIGHTS = [f"2026{9 + day // 30:02d}{1 + day % 30:02d}T2200Z-{day:04x}" for day in range(50)]
CHANGED = ["qnn v2.48.0 → v2.49.40", "device bench-1 → bench-2"]


def trend(row: dict[str, Any], series: str, level: float, noise: float, **facts: Any) -> dict[str, Any]:
    """Return a series of fifty nights around a level. It is undefined in one night."""
    chance = random.Random(series)
    values = [None if night == 7 else level + chance.gauss(0, noise) for night in range(len(NIGHTS))]
    columns = {"farm": None, "series": series, "operator": None, "step": None, "unit": None, "nights": len(NIGHTS)}
    columns |= {
        "level": level,
        "noise": noise,
        "floor": noise,
        "verdict": "steady",
        "first_bad_run": None,
        "changed": [],
        "runs": NIGHTS,
    }
    return identity_of(row) | columns | {"values": values, "value": values[-1]} | facts


def trends(cells: list[dict[str, Any]]) -> list[Row]:
    """Return steady series, except that in one model's 8a8w cells the latency and one operator regressed."""
    rows: list[dict[str, Any]] = []
    for row in cells:
        if row.get("final_snr_db") is None:
            continue
        rows.append(trend(row, "final_snr_db", row["final_snr_db"], 0.2, unit="dB"))
        slow = (row["model"], row["scheme"]) == ("efficientnet_lite0", "8a8w")
        late = trend(row, "latency_p50_ms", row["latency_p50_ms"], 0.05, unit="ms")
        convolution = trend(row, "introduced_snr_db", 41.0, 0.3, operator="aten_convolution_default_21", unit="dB")
        if slow:
            late["values"][-3:] = [value * 1.3 for value in late["values"][-3:]]
            late |= {
                "value": late["values"][-1],
                "verdict": "still_bad",
                "first_bad_run": NIGHTS[-3],
                "changed": CHANGED,
            }
            convolution |= {"value": 12.5, "verdict": "regressed", "first_bad_run": NIGHTS[-3], "changed": CHANGED}
        rows += [late, convolution]
    return rows
