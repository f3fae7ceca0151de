"""The rows of every table for every kind of cell, from records made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from conf.load import load
from conf.schema import Request
from tasks.records import Counterpart, Gap, OperatorComparison, OtherReference, Toolchain
from tasks.results.outcome import CellResult
from tasks.results.rows import rows
from tasks.storage import tables
from tasks.storage.digest import digest
from tasks.storage.store import Store
from tasks.toolchain.workers.supervisor import CallCost

from tests.sample_records import (  # isort: skip
    ABORT, CHECKED, COMPARISON, CONV, LOWERED, PROBED, VIEW, WORSE, blob, every_kind, up_to_lower, passed_cell,
)  # fmt: skip

RUN = "20261121T094931Z-5fcc"
TOOLCHAIN = Toolchain(python="3.11.7", torch="2.13.0", executorch="1.5.1", torchao="0.18.0", qnn="v2.49.40.260701")
GAP = {"mse": 0.25, "mean_abs": 0.5, "max_abs": 0.75, "snr_db": 40.0, "cosine": 0.875}
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "executorch": "1.5.1", "torchao": "0.18.0", "qnn": "v2.49.40.260701"}
NAMES = {
    "run_id": RUN, "model": "digits_cnn", "scheme": "8a8w", "soc": "SM8650", "device": "local", "backend": "qnn",
}  # fmt: skip


@pytest.fixture(scope="module")
def asked() -> Request:
    return load(["tolerance=none"]).cells[0].request


def found(cell: CellResult, table: str) -> list[dict[str, Any]]:
    """A cell's rows without the names that every row begins with."""
    made = rows(RUN, [cell], TOOLCHAIN)[table]
    assert [{name: row[name] for name in NAMES} for row in made] == [NAMES] * len(made)
    return [{name: value for name, value in row.items() if name not in NAMES} for row in made]


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


def test_every_row_of_every_kind_of_cell_is_stored_and_read_back(asked: Request, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    cost = CallCost(stage="lower", subject=("digits_cnn", "8a8w", "qnn", "SM8650"), seconds=3.5, peak_bytes=4096)
    made = rows(RUN, every_kind(asked), TOOLCHAIN, [cost])
    assert set(made) == set(tables.TABLES) - {"trends"}  # made of many runs' rows
    for table, contents in made.items():
        tables.write(store, RUN, table, contents)
        assert len(tables.rows(store, table, RUN)) == len(contents)
        assert {tuple(row) for row in contents} == {tuple(tables.schema_of(table).names)}


def test_every_planned_cell_has_one_row_in_the_order_planned(asked: Request) -> None:
    made = rows(RUN, every_kind(asked), TOOLCHAIN)["cells"]
    assert [(row["stage"], row["outcome"], row["error_type"], row["error"]) for row in made] == [
        ("compare", "passed", None, None),
        ("compare", "passed", None, None),
        ("execute", "failed", "RunnerFailed", "the debug program ended with SIGABRT"),
        ("deploy", "infrastructure", "DeviceError", "unplugged"),
        ("export", "failed", "ToolchainError", "export failed: Unsupported"),
        (None, "impossible", None, None),
        ("export", "failed", "RuntimeError", "RuntimeError()"),
    ]
    assert [row["reason"] for row in made] == [
        None, "no operators: already inserted", None, None, None, "no fp16 there", None,
    ]  # fmt: skip
    # A log is that of whatever failed, else of the toolchain's last call.
    assert [row["log"] and row["log"][0] for row in made] == ["c", "c", "9", "c", "8", None, None]


def test_a_cell_that_came_through(asked: Request) -> None:
    assert [without_null(row) for row in found(passed_cell(asked), "cells")] == [
        {
            "stage": "compare",
            "outcome": "passed",
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
            "final_snr_db": 30.0,
            "final_cosine": 0.75,
            "final_max_abs": 1.5,
            "top1_agreement": 0.5,
            "accuracy": 1.0,
            "accuracy_eager": 1.0,
            "latency_p50_ms": 4.0,
            "observer_effect_snr_db": 60.0,
            "worst_rung": "device",
            "operators_introduced": 1,
            "operators_masked": 1,
            "worst_operator": "conv",
            "worst_operator_verdict": "introduced",
            "worst_operator_introduced_snr_db": 20.0,
            "worst_operator_effect_snr_db": 35.0,
            **VERSIONS,
            "log": "c" * 64,
            "verb": "run",
            **digests(asked),
        }
    ]


def test_a_cell_says_what_it_was_asked_to_be_by_digests_of_which_a_change_moves_its_own_alone(asked: Request) -> None:
    def told(request: Request, code: str = "1") -> dict[str, Any]:
        (row,) = found(passed_cell(request, code=code), "cells")
        return {name: row[name] for name in ("model_digest", *digests(request))}

    changed: dict[str, dict[str, Any]] = {
        "code": told(asked, "2"),
        "model": told(replace(asked, model=replace(asked.model, arguments={"width": 3}))),
        "scheme": told(replace(asked, scheme=replace(asked.scheme, calibration_samples=3))),
        "soc": told(replace(asked, soc=replace(asked.soc, vtcm_mib=3))),
        "measure": told(replace(asked, measure=replace(asked.measure, iterations=3))),
        "tolerance": told(replace(asked, tolerance=replace(asked.tolerance, introduced_operators=0))),
        "device": told(replace(asked, device=replace(asked.device, deadline_s=3.0))),
    }
    moved = {name: [key for key in row if row[key] != told(asked)[key]] for name, row in changed.items()}
    assert moved == {
        "code": ["model_digest"],
        "model": ["model_digest"],
        "scheme": ["scheme_digest"],
        "soc": ["soc_digest"],
        "measure": ["request_digest"],
        "tolerance": ["request_digest"],
        "device": [],
    }


def test_a_cell_of_a_farm_names_it_whichever_device_ran_it(asked: Request) -> None:
    farmed = replace(asked, farm=replace(asked.farm, name="shelf"), pool=[asked.device])
    assert [(row["farm"]) for row in found(passed_cell(farmed), "cells")] == ["shelf"]


def test_a_cell_that_was_never_tried_has_nothing_but_its_reason(asked: Request) -> None:
    cell = CellResult(request=asked, impossible="no fp16 there")
    assert [without_null(row) for row in found(cell, "cells")] == [
        {"outcome": "impossible", "reason": "no fp16 there", "verb": "run", **VERSIONS, **digests(asked)}
    ]
    assert {table for table, made in rows(RUN, [cell], TOOLCHAIN).items() if made} == {"cells"}


OTHER = OtherReference(
    name="exported",
    values=blob("b"),
    counterparts=(Counterpart(nodes=("conv2d", "batch_norm"), status=None), Counterpart(nodes=(), status="no_node")),
    unclaimed=(replace(VIEW, index=2, name="dropout", target="dropout.default"),),
)


def test_another_reference_has_rows_of_its_own_that_no_count_of_the_cell_knows(asked: Request) -> None:
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
    cell = passed_cell(asked, comparison=replace(COMPARISON, other_references=against))
    assert found(cell, "cells") == found(passed_cell(asked), "cells")
    edge, others = found(cell, "operators")[:4], found(cell, "operators")[4:]
    assert edge == found(passed_cell(asked), "operators")
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


@pytest.mark.parametrize(("references", "rows_a_sample"), [(["edge"], 2), (["exported"], 5)])
def test_what_was_never_compared_has_a_row_in_each_reference_that_was_asked_for(
    references: list[str], rows_a_sample: int, asked: Request
) -> None:
    request = replace(asked, measure=replace(asked.measure, references=references))
    cell = replace(up_to_lower(request, "execute", ABORT), lowered=replace(LOWERED, references=(OTHER,)))
    made = [(row["reference"], row["operator"], row["status"]) for row in found(cell, "operators")]
    one = [
        ("edge", "conv", "not_dumped"), ("edge", "view", "not_dumped"), ("exported", "conv", "not_dumped"),
        ("exported", "view", "not_dumped"), ("exported", "dropout", "no_operator"),
    ]  # fmt: skip
    assert made == one[:rows_a_sample] * 2


def test_an_operator_has_one_row_a_sample_with_its_gap_or_a_status(asked: Request) -> None:
    conv = {
        "operator_index": 0,
        "operator": "conv",
        "target": "aten.convolution.default",
        "debug_handle": 4,
        "output_index": 0,
        "module_path": "layers.0",
        "stack_trace": "line 3",
        "source_nodes": ("conv2d",),
        "shape": (1, 2, 8, 8),
        "dtype": "float32",
        "scale": (0.5,),
        "zero_point": (3,),
        "axis_order": (0, 2, 3, 1),
        "delegated": True,
        "subgraph": 0,
        "reference": "edge",
        "sample": 0,
        "status": "masked",
        "nonfinite_actual": 1,
        "nonfinite_reference": 2,
        "masked_elements": 5,
        "masked_by": ("relu",),
        **GAP,
        "introduced_mse": 0.125,
        "introduced_snr_db": 20.0,
        "introduced_max_abs": 0.375,
        "introduced_steps": 3.0,
        "introduced_spans": ("pad",),
        "effect_snr_db": 35.0,
        "verdict": "introduced",
        "why": None,
    }
    untouched = {"nonfinite_actual": 0, "nonfinite_reference": 0, "masked_elements": 0, "masked_by": ()}
    never_replayed = untouched | {
        "introduced_mse": None,
        "introduced_snr_db": None,
        "introduced_max_abs": None,
        "introduced_steps": None,
        "introduced_spans": (),
        "effect_snr_db": None,
    }
    view = dict.fromkeys(conv) | {
        "operator_index": 1,
        "operator": "view",
        "target": "aten.view_copy.default",
        "output_index": 0,
        "module_path": "",
        "stack_trace": "",
        "source_nodes": (),
        "delegated": False,
        "reference": "edge",
        "sample": 0,
        "status": "no_handle",
        "verdict": "blind",
        "why": "no such kernel",
        **never_replayed,
    }
    exact = conv | never_replayed | {"sample": 1, "status": "exact", "mse": 0.0, "snr_db": None, "verdict": "exact"}
    assert found(passed_cell(asked), "operators") == [conv, view, exact, view | {"sample": 1, "why": None}]


@pytest.mark.parametrize("kind", [1, 2, 3], ids=["no debug program", "aborted", "device lost"])
def test_operators_that_were_lowered_and_not_compared_are_rows_all_the_same(asked: Request, kind: int) -> None:
    cell = every_kind(asked)[kind]
    told = [
        (row["operator"], row["sample"], row["status"], row["verdict"], row["mse"]) for row in found(cell, "operators")
    ]
    assert told == [
        ("conv", 0, "not_dumped", "blind", None),
        ("view", 0, "not_dumped", "blind", None),
        ("conv", 1, "not_dumped", "blind", None),
        ("view", 1, "not_dumped", "blind", None),
    ]
    (row,) = found(cell, "cells")
    assert (row["operators_total"], row["operators_compared"]) == (4, None)
    assert row["worst_operator"] is None


def test_an_output_has_one_row(asked: Request) -> None:
    assert found(passed_cell(asked), "outputs")[0] == {
        "rung": "device", "reference": "eager", "sample": 0, "sample_name": "a", "output_index": 0, "output": "logits",
        "shape": (1, 2), "status": "compared", **GAP, "previous_rung": "edge", "previous_snr_db": 45.0, "label": 7,
        "top1_reference": 7, "top1_actual": 7,
    }  # fmt: skip
    assert len(found(passed_cell(asked), "outputs")) == 2


def test_an_event_an_operator_type_and_a_command_have_one_row_each(asked: Request) -> None:
    amounts = {"count": 2, "p10": 1.0, "p50": 5.0, "p90": 9.0, "mean": 5.0, "minimum": 0.0, "maximum": 10.0}
    event = {
        "program": "shipping", "same_outputs": True, "event_block": "Execute", "event": "DELEGATE_CALL #0",
        "kind": "delegate_call", "node": None, "instruction": 0, "unit": "us", "raw": (0.0, 10.0), "samples": (0, 1),
        "debug_handle": 4, "debug_handles": (4,), "operators": ("conv",), "op_types": ("aten.convolution.default",),
        "module_paths": ("layers.0",), "stack_traces": ("line 3",), "delegate": True, "delegate_backend": "QnnBackend",
        "subgraph": 0, "counted_in": (),
    }  # fmt: skip
    assert found(passed_cell(asked), "profile") == [amounts | event]
    module = {"program": "shipping", "unit": "us", "operators": ("conv",), "share": 1.0, "counted_in": None}
    assert found(passed_cell(asked), "modules") == [
        module | amounts | {"module_path": "", "depth": 0, "own_mean": 0.0},
        module | amounts | {"module_path": "layers", "depth": 1, "own_mean": 0.0},
        module | amounts | {"module_path": "layers.0", "depth": 2, "own_mean": 5.0},
    ]
    of = {"operator": "conv", "operator_index": 0, "debug_handle": 4, "output_index": 0, "sample": 1, "rung": "device"}
    said = {"reference": "edge", "metric": "l1", "value": 1.5, "problem": None}
    assert found(passed_cell(asked), "metrics") == [of | said]
    assert found(passed_cell(asked), "delegation") == [
        {"operator": "conv", "occurrences_delegated": 5, "occurrences_not_delegated": 0, "refusals": ()},
        {"operator": "view", "occurrences_delegated": 1, "occurrences_not_delegated": 2, "refusals": ("no layout",)},
    ]  # fmt: skip
    assert found(passed_cell(asked), "audit") == [asdict(CHECKED)]
    assert found(passed_cell(asked), "probe") == [asdict(PROBED)]
    assert found(passed_cell(asked), "commands") == [
        {"argv": ("python", "runner"), "exit_code": 0, "seconds": 4.0},
        {"argv": ("python", "runner", "--dump"), "exit_code": 0, "seconds": 8.0},
    ]
    assert found(up_to_lower(asked, "execute", ABORT), "commands") == [
        {"argv": ("python", "r"), "exit_code": -6, "seconds": 0.5}
    ]
