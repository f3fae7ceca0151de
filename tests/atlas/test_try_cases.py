"""Cases that fail, abort or do not end affect no other case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.conf.atlas_plan import atlas_overrides, planned
from qnnsweep.conf.models import DataConfig, ModelConfig
from qnnsweep.flows.cells.cases import case_options
from qnnsweep.flows.cells.resources import prepare
from qnnsweep.tasks.atlas.case import compare_case, compile_case
from qnnsweep.tasks.atlas.in_process import control_case
from qnnsweep.tasks.atlas.list_cases import list_cases
from qnnsweep.tasks.atlas.try_cases import try_cases
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.records import Capture, CaseOutcome, OperatorCase, OperatorCases
from tests.atlas.planted_runtime import faulty_control

pytestmark = pytest.mark.toolchain

FAULTS = ["none", "abort_in_export", "skipped", "abort_in_lower", "none", "hang_in_export", "raise_in_export",
          "raise_in_lower", "none", "loses_a_write"]  # fmt: skip
DEADLINE_S = 20


def collection(source: str, **arguments: Any) -> ModelConfig:
    data = DataConfig(source="planted_cases:inputs")
    return ModelConfig(
        name="planted",
        factory="planted_cases:case",
        cases=source,
        arguments=arguments,
        calibration=data,
        evaluation=replace(data, count=1),
    )


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    plan = planned(
        atlas_overrides([f"artifacts={tmp_path}", f"limits.child_deadline_s={DEADLINE_S}", "scheme=8a8w"]), ()
    )
    return plan.cells[0].request, prepare(plan)


@pytest.mark.slow
def test_every_case_has_an_outcome_and_only_the_planted_ones_fail(tools: Any) -> None:
    ask, resources = tools
    model = collection("planted_cases:cases", faults=FAULTS)
    listed = list_cases(model, "", store=resources.store, workers=resources.workers)
    assert [case.name for case in listed.cases] == [f"{number} {fault}" for number, fault in enumerate(FAULTS)]
    tried = try_cases(
        listed,
        case_options(replace(ask, model=model), resources.workers.identity),
        "",
        store=resources.store,
        workers=resources.workers,
    )
    outcomes = {outcome.case.partition(" ")[2]: outcome for outcome in tried.outcomes}
    assert [(outcome.state, outcome.stage) for outcome in tried.outcomes] == [
        ("exact", "compare"),
        ("aborted", "export"),
        ("not_exported", None),
        ("aborted", "lower"),
        ("exact", "compare"),
        ("aborted", "export"),
        ("not_exported", "export"),
        ("refused", "lower"),
        ("exact", "compare"),
        ("wrong", "compare"),
    ]
    assert outcomes["abort_in_export"].why == "SIGSEGV"
    assert outcomes["abort_in_lower"].why == "SIGABRT"
    assert outcomes["skipped"].why == "left out on purpose"
    assert f"deadline of {DEADLINE_S} s" in (outcomes["hang_in_export"].why or "")
    assert "ValueError: no such weights" in (outcomes["raise_in_export"].why or "")
    assert outcomes["raise_in_lower"].why == "RuntimeError: the first line; the second line"
    assert (outcomes["loses_a_write"].why or "").startswith("the lowered graph is another function than the model")
    healthy = outcomes["none"]
    assert healthy.equal_tensors == 4
    assert (healthy.targets, healthy.delegated_nodes, healthy.cpu_nodes) == (("aten.add.Tensor",), 1, 0)
    assert healthy.inputs == "float32[2, 3]"
    assert healthy.introduced_p999_steps == 0.0
    logs = {log.sha256 for log in tried.logs}
    assert {outcome.log for outcome in tried.outcomes if outcome.log} == logs


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("planted_cases:cases", {"faults": []}, "yields no case"),
        ("planted_cases:cases", {}, "missing 1 required positional argument"),
        ("planted_cases:case", {"fault": "none"}, "must be an iterable, not Sum"),
        ("planted_cases:inputs", {"count": 1, "fault": ""}, "a case is not complete: KeyError: 'name'"),
        ("planted_cases:FAULTS", {}, "is a tuple, not a function"),
    ],
)
def test_a_wrong_collection_gets_one_clear_error(
    tools: Any, source: str, arguments: dict[str, Any], message: str
) -> None:
    _, resources = tools
    with pytest.raises(RequestError, match=message):
        list_cases(collection(source, **arguments), "", store=resources.store, workers=resources.workers)


def test_cases_that_are_all_left_out_need_no_process(tools: Any) -> None:
    ask, resources = tools
    case = OperatorCase(name="a", operator="add", arguments="{}", inputs=(), skipped="why")
    tried = try_cases(
        OperatorCases(cases=(case,)),
        case_options(replace(ask, model=collection("planted_cases:cases")), resources.workers.identity),
        "",
        store=resources.store,
        workers=resources.workers,
    )
    assert tried.outcomes == (CaseOutcome(case="a", operator="add", inputs="", state="not_exported", why="why"),)
    assert tried.logs == ()


@pytest.mark.parametrize("control", [control_case, faulty_control])
def test_a_difference_between_the_runtimes_is_no_fault_of_the_operator(
    tools: Any, tmp_path: Path, control: Callable[..., Capture]
) -> None:
    ask, resources = tools
    model = collection("planted_cases:cases", faults=["none"])
    options = case_options(replace(ask, model=model), resources.workers.identity)
    (case,) = list_cases(model, "", store=resources.store, workers=resources.workers).cases
    call = resources.workers.call
    lowered = call("lower", compile_case, None, tmp_path, case, options).value
    captured = call("execute", control, tmp_path, lowered, options.measure, compiles=False).value
    outcome = call("compare", compare_case, None, tmp_path, case, lowered, options, captured).value
    assert (outcome.state, outcome.why) == ("exact", None)
    if control is control_case:
        assert (outcome.equal_tensors, outcome.runtimes_differ) == (4, None)
        return
    assert outcome.equal_tensors is None
    assert outcome.runtimes_differ.startswith(
        "ExecuTorch's runtime and ONNX Runtime return other tensors from the same"
    )
    assert "output output differs in 1 of 1 samples" in outcome.runtimes_differ
