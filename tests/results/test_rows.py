"""The rows of every table for every kind of cell, from sample records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.devices import RunnerKind
from qnnsweep.conf.schema import Request
from qnnsweep.tasks.records import Counterpart, Gap, OperatorComparison, OtherReference
from qnnsweep.tasks.results.digests import settings
from qnnsweep.tasks.results.outcome import CellResult
from qnnsweep.tasks.results.rows import rows
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.digest import digest
from qnnsweep.tasks.storage.store import Store
from qnnsweep.tasks.toolchain.workers.supervisor import CallCost
from tests.sample_records import (
    ABORT,
    CHECKED,
    COMPARISON,
    CONV,
    LOWERED,
    PROBED,
    TOOLCHAIN,
    VIEW,
    WORSE,
    blob,
    collection_cell,
    every_kind,
    passed_cell,
    up_to_lower,
    with_method,
)  # fmt: skip

RUN = "20261121T094931Z-5fcc"
GAP = {"mse": 0.25, "mean_abs": 0.5, "max_abs": 0.75, "snr_db": 40.0, "cosine": 0.875}
VERSIONS = {name: version for name, version in asdict(TOOLCHAIN).items() if version is not None}
NAMES = {
    "run_id": RUN, "model": "digits_cnn", "scheme": "8a8w", "soc": "SM8650", "device": "local", "backend": "qnn",
    "toolchain": "default",
}  # fmt: skip


def rows_of(cell: CellResult, table: str) -> list[dict[str, Any]]:
    """Return a cell's rows without the columns that every table begins with, and without the method, which is null."""
    whole_rows = rows(RUN, [cell], TOOLCHAIN)[table]
    assert [{name: row[name] for name in NAMES} for row in whole_rows] == [NAMES] * len(whole_rows)
    assert not any(row.get("method") for row in whole_rows)
    return [{name: value for name, value in row.items() if name not in (*NAMES, "method")} for row in whole_rows]


def columns_of(record: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name != "method"}


def without_null(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def digests(request: Request) -> dict[str, str]:
    return {
        "scheme_digest": digest(request.scheme),
        "soc_digest": digest(request.soc),
        "request_digest": digest([request.measure, request.tolerance, request.backend]),
    }


def columns(cells: Iterable[CellResult], table: str) -> set[tuple[str, ...]]:
    return {tuple(row) for row in rows(RUN, list(cells), TOOLCHAIN)[table]}


def test_every_row_of_every_kind_of_cell_is_stored_and_read_back(planned: Request, tmp_path: Path) -> None:
    store = Store(tmp_path)
    cost = CallCost(stage="lower", subject=("digits_cnn", "8a8w", "qnn", "SM8650"), seconds=3.5, peak_bytes=4096)
    stored = rows(RUN, [*every_kind(planned), collection_cell(planned)], TOOLCHAIN, [cost])
    assert set(stored) == set(tables.TABLES) - {"trends"}  # these come from the rows of several runs
    for table, contents in stored.items():
        tables.write(store, RUN, table, contents)
        assert len(tables.rows(store, table, RUN)) == len(contents)
        assert {tuple(row) for row in contents} <= {tuple(tables.schema_of(table).names)}
    assert {table for table, contents in stored.items() if not contents} == {"repair", "certificate"}


def test_every_planned_cell_has_one_row_in_the_order_planned(planned: Request) -> None:
    cells = rows(RUN, every_kind(planned), TOOLCHAIN)["cells"]
    assert [(row["stage"], row["outcome"], row["error_type"], row["error"]) for row in cells] == [
        ("compare", "passed", None, None),
        ("compare", "passed", None, None),
        ("execute", "failed", "RunnerFailed", "the debug program ended with SIGABRT"),
        ("deploy", "infrastructure", "DeviceError", "unplugged"),
        ("export", "failed", "ToolchainError", "export failed: Unsupported"),
        (None, "impossible", None, None),
        ("export", "failed", "RuntimeError", "RuntimeError()"),
    ]
    assert [row["reason"] for row in cells] == [
        None, "no operators: already inserted", None, None, None, "no fp16 there", None,
    ]  # fmt: skip
    # The log is that of the call that failed, else of the toolchain's last call.
    assert [row["log"] and row["log"][0] for row in cells] == ["c", "c", "9", "c", "8", None, None]


def test_a_cell_that_passed(planned: Request) -> None:
    assert [without_null(row) for row in rows_of(passed_cell(planned), "cells")] == [
        {
            "stage": "compare",
            "outcome": "passed",
            "diagnosis": "Worst sample (b) 30.0 dB: weights of `layers.0` 50 %, clipping 25 %, device arithmetic in it "
            "13 %, rest 12 %. Device against host: 45.0 dB.",
            "weights": "trained",
            "export_s": 1.5,
            "quantize_s": 2.5,
            "edge_s": 5.5,
            "lower_s": 3.5,
            "execute_s": 12.0,
            "measured_run": "20261120T220000Z-0000",
            "sent_bytes": 0,
            "outputs_sha256": "1" * 64,
            "pte_bytes": 1000,
            "debug_pte_bytes": 2000,
            "delegated_nodes": 6,
            "non_delegated_nodes": 2,
            "delegated_subgraphs": 2,
            "spill_bytes": 11,
            "fill_bytes": 22,
            "write_total_bytes": 33,
            "read_total_bytes": 44,
            "program_soc": "SM8650",
            "program_arch": "v75",
            "program_qnn": "v2",
            "operators_total": 4,
            "operators_compared": 2,
            "samples": 2,
            "final_difference": "finite",
            "final_snr_db": 30.0,
            "mean_snr_db": pytest.approx(-10 * math.log10((1e-4 + 1e-3) / 2)),
            "mean_snr_db_low": 30.0,
            "mean_snr_db_high": 40.0,
            "device_difference": "finite",
            "device_snr_db": 45.0,
            "final_cosine": 0.75,
            "final_max_abs": 1.5,
            "top1_agreement": 0.5,
            "top1_agreement_low": pytest.approx(0.0945, abs=1e-4),
            "top1_agreement_high": pytest.approx(0.9055, abs=1e-4),
            "accuracy": 1.0,
            "accuracy_eager": 1.0,
            "kl_divergence_nats": 0.125,
            "worst_sample": 1,
            "worst_sample_name": "b",
            "worst_final_output": "logits",
            "sample_role": "worst",
            "missed_limits": (),
            "latency_p50_ms": 4.0,
            "timed_on": "simulator",
            "observer_effect": "finite",
            "observer_effect_snr_db": 60.0,
            "worst_rung": "device",
            "operators_introduced": 1,
            "operators_masked": 1,
            "worst_operator": "conv",
            "worst_operator_verdict": "exact",
            "worst_operator_cause": "weights",
            "worst_operator_effect_snr_db": 33.0,
            **VERSIONS,
            "log": "c" * 64,
            "started": "2026-11-21T09:49:31+00:00",
            "verb": "run",
            **digests(planned),
            "settings": settings(planned),
        }
    ]


def test_the_settings_of_a_cell_are_overrides_without_secrets(planned: Request) -> None:
    arguments = {"width": 3, "api_token": "hidden", "layers": [1, 2]}
    (row,) = rows_of(passed_cell(replace(planned, model=replace(planned.model, arguments=arguments))), "cells")
    assert [setting for setting in row["settings"] if setting.startswith("model.arguments.")] == [
        "model.arguments.width=3",
        "model.arguments.api_token=***",
        "model.arguments.layers=[1, 2]",
    ]


def test_a_change_of_the_request_changes_the_digest_of_its_part_alone(planned: Request) -> None:
    def digests_of(request: Request, code: str = "1") -> dict[str, Any]:
        (row,) = rows_of(passed_cell(request, code=code), "cells")
        return {name: row[name] for name in ("model_digest", *digests(request))}

    changed: dict[str, dict[str, Any]] = {
        "code": digests_of(planned, "2"),
        "model": digests_of(replace(planned, model=replace(planned.model, arguments={"width": 3}))),
        "scheme": digests_of(replace(planned, scheme=replace(planned.scheme, calibration_samples=3))),
        "soc": digests_of(replace(planned, soc=replace(planned.soc, vtcm_mib=3))),
        "measure": digests_of(replace(planned, measure=replace(planned.measure, iterations=3))),
        "tolerance": digests_of(replace(planned, tolerance=replace(planned.tolerance, introduced_operators=0))),
        "device": digests_of(replace(planned, device=replace(planned.device, deadline_s=3.0))),
    }
    changed_digests = {
        name: [key for key in row if row[key] != digests_of(planned)[key]] for name, row in changed.items()
    }
    assert changed_digests == {
        "code": ["model_digest"],
        "model": ["model_digest"],
        "scheme": ["scheme_digest"],
        "soc": ["soc_digest"],
        "measure": ["request_digest"],
        "tolerance": ["request_digest"],
        "device": [],
    }


def test_a_cell_of_a_farm_names_it_whichever_device_ran_it(planned: Request) -> None:
    farmed = replace(planned, farm=replace(planned.farm, name="shelf"), pool=[planned.device])
    assert [(row["farm"]) for row in rows_of(passed_cell(farmed), "cells")] == ["shelf"]


def test_times_of_qnns_python_runner_are_those_of_a_simulator_and_all_others_are_those_of_the_device(
    planned: Request,
) -> None:
    native = replace(planned, device=replace(planned.device, runner=RunnerKind.native))
    xnnpack = replace(planned, backend=replace(planned.backend, kind="xnnpack"))
    unmeasured = replace(passed_cell(planned), capture=None)
    cells = [passed_cell(planned), passed_cell(native), passed_cell(xnnpack), unmeasured]
    assert [row["timed_on"] for cell in cells for row in rows_of(cell, "cells")] == [
        "simulator", "device", "device", None,
    ]  # fmt: skip


def test_a_cell_that_was_never_tried_has_nothing_but_its_reason(planned: Request) -> None:
    cell = CellResult(request=planned, impossible="no fp16 there")
    assert [without_null(row) for row in rows_of(cell, "cells")] == [
        {
            "outcome": "impossible",
            "diagnosis": "no fp16 there",
            "reason": "no fp16 there",
            "missed_limits": (),
            "started": "2026-11-21T09:49:31+00:00",
            "verb": "run",
            **VERSIONS,
            **digests(planned),
            "settings": settings(planned),
        }
    ]
    assert {table for table, contents in rows(RUN, [cell], TOOLCHAIN).items() if contents} == {"cells"}


OTHER = OtherReference(
    name="exported",
    values=blob("b"),
    counterparts=(Counterpart(nodes=("conv2d", "batch_norm"), status=None), Counterpart(nodes=(), status="no_node")),
    unclaimed=(replace(VIEW, index=2, name="dropout", target="dropout.default"),),
)


def test_the_rows_of_another_reference_are_not_counted_in_the_cell(planned: Request) -> None:
    against = (
        OperatorComparison(
            operator=CONV, sample=0, status="compared", gap=WORSE, reference="exported", nodes=("a", "b"),
        ),
        OperatorComparison(operator=VIEW, sample=0, status="no_node", gap=Gap(), reference="exported", nodes=()),
        OperatorComparison(
            operator=OTHER.unclaimed[0], sample=0, status="no_operator", gap=Gap(), reference="exported",
            nodes=("dropout",),
        ),
    )  # fmt: skip
    cell = passed_cell(planned, comparison=replace(COMPARISON, other_references=against))
    assert rows_of(cell, "cells") == rows_of(passed_cell(planned), "cells")
    edge, others = rows_of(cell, "operators")[:4], rows_of(cell, "operators")[4:]
    assert edge == rows_of(passed_cell(planned), "operators")
    assert [
        (row["reference"], row["operator_index"], row["operator"], row["source_nodes"], row["status"], row["snr_db"])
        for row in others
    ] == [
        ("exported", 0, "conv", ("a", "b"), "compared", 30.0),
        ("exported", 1, "view", (), "no_node", None),
        ("exported", None, "dropout", ("dropout",), "no_operator", None),
    ]
    assert {(row["verdict"], row["introduced_snr_db"], row["introduced_steps"]) for row in others} == {
        ("blind", None, None)
    }


@pytest.mark.parametrize(("references", "rows_per_sample"), [(["edge"], 2), (["exported"], 5)])
def test_operators_that_were_not_compared_have_a_row_per_requested_reference(
    references: list[str], rows_per_sample: int, planned: Request
) -> None:
    request = replace(planned, measure=replace(planned.measure, references=references))
    cell = replace(up_to_lower(request, "execute", ABORT), lowered=with_method(LOWERED, references=(OTHER,)))
    actual = [(row["reference"], row["operator"], row["status"]) for row in rows_of(cell, "operators")]
    of_a_sample = [
        ("edge", "conv", "not_dumped"), ("edge", "view", "not_dumped"), ("exported", "conv", "not_dumped"),
        ("exported", "view", "not_dumped"), ("exported", "dropout", "no_operator"),
    ]  # fmt: skip
    assert actual == of_a_sample[:rows_per_sample] * 2


@pytest.mark.parametrize("kind", [1, 2, 3], ids=["no debug program", "aborted", "device lost"])
def test_operators_that_were_lowered_and_not_compared_are_rows_all_the_same(planned: Request, kind: int) -> None:
    cell = every_kind(planned)[kind]
    columns = ("operator", "sample", "status", "verdict", "mse")
    assert [tuple(row[column] for column in columns) for row in rows_of(cell, "operators")] == [
        ("conv", 0, "not_dumped", "blind", None),
        ("view", 0, "not_dumped", "blind", None),
        ("conv", 1, "not_dumped", "blind", None),
        ("view", 1, "not_dumped", "blind", None),
    ]
    (row,) = rows_of(cell, "cells")
    assert (row["operators_total"], row["operators_compared"], row["worst_operator"]) == (4, None, None)


def test_an_output_has_one_row(planned: Request) -> None:
    assert rows_of(passed_cell(planned), "outputs")[0] == {
        "rung": "device", "reference": "eager", "sample": 0, "sample_name": "a", "output_index": 0, "output": "logits",
        "shape": (1, 2), "status": "compared", **GAP, "why": None, "nonfinite_actual": 0, "nonfinite_reference": 0,
        "previous_rung": "designed", "previous_status": "compared", "previous_snr_db": 45.0, "label": 7,
        "top1_reference": 7, "top1_actual": 7, "centred_snr_db": None, "row_snr_db": None, "rows": None,
        "rows_same_top1": None, "equal_elements": None}  # fmt: skip
    assert len(rows_of(passed_cell(planned), "outputs")) == 2


def test_an_event_an_operator_type_and_a_command_have_one_row_each(planned: Request) -> None:
    amounts = {"count": 2, "p10": 1.0, "p50": 5.0, "p90": 9.0, "mean": 5.0, "minimum": 0.0, "maximum": 10.0}
    event = {
        "program": "shipping", "same_outputs": True, "event_block": "Execute", "event": "DELEGATE_CALL #0",
        "kind": "delegate_call", "node": None, "instruction": 0, "unit": "us", "raw": (0.0, 10.0), "samples": (0, 1),
        "debug_handle": 4, "debug_handles": (4,), "operators": ("conv",), "op_types": ("aten.convolution.default",),
        "module_paths": ("layers.0",), "stack_traces": ("line 3",), "delegate": True, "delegate_backend": "QnnBackend",
        "subgraph": 0, "counted_in": (),
    }  # fmt: skip
    assert rows_of(passed_cell(planned), "profile") == [amounts | event]
    module = {"program": "shipping", "unit": "us", "operators": ("conv",), "share": 1.0, "counted_in": None}
    assert rows_of(passed_cell(planned), "modules") == [
        module | amounts | {"module_path": "", "depth": 0, "own_mean": 0.0},
        module | amounts | {"module_path": "layers", "depth": 1, "own_mean": 0.0},
        module | amounts | {"module_path": "layers.0", "depth": 2, "own_mean": 5.0},
    ]
    operator = {"operator": "conv", "operator_index": 0, "debug_handle": 4, "output_index": 0}
    metric = {"sample": 1, "rung": "device", "reference": "edge", "metric": "l1", "value": 1.5, "problem": None}
    assert rows_of(passed_cell(planned), "metrics") == [operator | metric]
    assert rows_of(passed_cell(planned), "delegation") == [
        {"operator": "conv", "occurrences_delegated": 5, "occurrences_not_delegated": 0, "refusals": ()},
        {"operator": "view", "occurrences_delegated": 1, "occurrences_not_delegated": 2, "refusals": ("no layout",)},
    ]  # fmt: skip
    assert rows_of(passed_cell(planned), "audit") == [columns_of(CHECKED)]
    assert rows_of(passed_cell(planned), "probe") == [columns_of(PROBED)]
    on_own_device = {"host_rounds": 0, "hire": None, "hired_s": None, "jobs": ()}
    assert rows_of(passed_cell(planned), "commands") == [
        {"argv": ("python", "runner"), "exit_code": 0, "seconds": 4.0, **on_own_device},
        {"argv": ("python", "runner", "--dump"), "exit_code": 0, "seconds": 8.0, **on_own_device},
    ]
    assert rows_of(up_to_lower(planned, "execute", ABORT), "commands") == [
        {"argv": ("python", "r"), "exit_code": -6, "seconds": 0.5, **on_own_device}
    ]
