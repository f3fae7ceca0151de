"""Forecasts of operator calls from the rows of atlases."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.tasks.results.usability import USABILITIES, AtlasEvidence, CallForecast, Where, operator_name, worst

HERE = Where(scheme="16a8w", arch=75, toolchain="default")
ADD = "aten.add.Tensor(float32[4, 8], float32[4, 8])"
ROUND = "aten.round.decimals(float32[4, 8], decimals=1)"


def row(*calls: str, state: str = "delegated", case: str = "a case", **others: Any) -> dict[str, Any]:
    why = None if state == "delegated" else f"{case} is {state}"
    place = {"run_id": "1", "scheme": "16a8w", "soc": "SM8650", "arch": 75, "toolchain": "default"}
    measured = {"case": case, "state": state, "why": why, "calls": [*calls]}
    return place | measured | {"targets": [], "cpu_targets": [], "worst_operator": None} | others


def forecast(call: str, *rows: dict[str, Any], where: Where = HERE) -> CallForecast:
    return AtlasEvidence(rows).forecast(call, where)


def test_the_same_call_is_the_best_evidence() -> None:
    larger = ADD.replace("8", "16")
    result = forecast(ADD, row(larger, state="refused", case="larger"), row(ADD))
    assert (result.usability, result.likeness) == ("delegated", "same call")


def test_the_nearest_shape_is_the_evidence_and_is_said_to_be_another_shape() -> None:
    rows = [row(f"aten.relu.default(float32[1, {size}])", state=state, case=str(size))
            for size, state in ((8, "delegated"), (1024, "refused"))]  # fmt: skip
    near = forecast("aten.relu.default(float32[1, 900])", *rows)
    assert (near.usability, near.likeness) == ("refused", "another shape")
    assert near.evidence is not None
    assert near.evidence.call == "aten.relu.default(float32[1, 1024])"
    assert forecast("aten.relu.default(float32[1, 9])", *rows).usability == "delegated"


def test_equal_arguments_are_better_evidence_than_equal_shapes() -> None:
    rows = [
        row("aten.round.decimals(float32[4, 8], decimals=2)", case="same shape"),
        row("aten.round.decimals(float32[64, 64], decimals=1)", state="cpu", case="same arguments"),
    ]
    assert forecast(ROUND, *rows).usability == "cpu"


def test_a_constant_differs_from_an_input() -> None:
    weight = "aten.matmul.default(float32[4, 8], constant float32[8, 8])"
    both = "aten.matmul.default(float32[4, 8], float32[8, 8])"
    assert forecast(both, row(weight), row(both.replace("4", "5"), state="refused")).usability == "refused"


def test_an_operator_of_no_case_is_unknown() -> None:
    assert forecast(ADD, row(ROUND)) == CallForecast(call=ADD, usability="unknown")


def test_only_the_operator_on_the_cpu_is_blamed() -> None:
    mixed = row(ADD, ROUND, state="cpu", cpu_targets=["aten.round.decimals"])
    assert forecast(ADD, mixed).usability == "delegated"
    assert forecast(ROUND, mixed).usability == "cpu"


def test_a_delegated_call_clears_a_refused_case_with_several_calls() -> None:
    refused = row(ADD, ROUND, state="refused", case="both")
    assert forecast(ADD, refused).usability == "refused"
    assert forecast(ADD, refused, row(ADD)).usability == "delegated"
    assert forecast(ROUND, refused, row(ADD)).usability == "refused"


def test_evidence_of_another_place_is_used_only_if_there_is_no_other() -> None:
    elsewhere = row(ADD, state="refused", arch=68, soc="SM8350")
    assert forecast(ADD, elsewhere).usability == "refused"
    assert forecast(ADD, elsewhere, row(ADD.replace("8", "16"))).usability == "delegated"


def test_a_later_run_replaces_an_earlier_one() -> None:
    rows = [row(ADD, state="delegated", run_id="2"), row(ADD, state="refused", run_id="1")]
    assert forecast(ADD, *rows).usability == "delegated"


def test_a_program_is_as_usable_as_its_worst_call() -> None:
    of = {usability: CallForecast(call="", usability=usability) for usability in USABILITIES}
    assert worst([of["delegated"], of["cpu"], of["wrong"]]) == "cpu"
    assert worst([of["delegated"], of["unknown"]]) == "delegated"
    assert worst([of["unknown"]]) == "unknown"


sizes = st.lists(st.integers(0, 4096), max_size=4)


@given(sizes, sizes, st.sampled_from(["delegated", "cpu", "refused", "wrong"]))
def test_one_case_decides_for_every_shape_of_its_operator(ours: list[int], theirs: list[int], state: str) -> None:
    call, other = (f"aten.relu.default(float32{size})" for size in (ours, theirs))
    result = forecast(call, row(other, state=state))
    assert result.usability == state
    assert operator_name(result.call) == "aten.relu.default"
    assert (result.likeness == "same call") == (ours == theirs)
