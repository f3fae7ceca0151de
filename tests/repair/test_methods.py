"""The candidates of a program with several methods, from sample records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qnnsweep.conf.schemes import SchemeOverride
from qnnsweep.tasks.records import (
    Comparison,
    Driven,
    ErrorParts,
    LoweredMethod,
    LoweredProgram,
    Operator,
    StateLink,
    StepPlan,
)
from qnnsweep.tasks.records.methods import named_operator
from qnnsweep.tasks.repair.candidates import candidates
from qnnsweep.tasks.repair.cures import Promise
from qnnsweep.tasks.repair.facts import operator_facts
from tests.repair.sample_cells import ADD, BYTES, CONVOLUTION, WIDE, operator, scheme, share
from tests.sample_records import ANSWER, COMPARISON, EXPORTED_METHOD, LOWERED, LOWERED_METHOD, QUANTIZED_METHOD, blob

LINK = StateLink(method="decode", output=0, to_method="decode", input=0, update="append", axis=1)
DRIVEN = Driven(plan=StepPlan(links=(LINK,), tokens=(), sequences=()), fixed=blob("a"), names=("first", "second"))
PREFILL, DECODE = {"least_value": -4.0, "largest_value": 2.0}, {"least_value": -1.0, "largest_value": 15.0}
"""The values of the addition in each method."""


def method(name: str, *operators: Operator) -> LoweredMethod:
    exported = replace(EXPORTED_METHOD, method=name)
    numbered = tuple(replace(row, index=index) for index, row in enumerate(operators))
    quantized = replace(QUANTIZED_METHOD, exported=exported)
    return replace(LOWERED_METHOD, quantized=quantized, operators=numbered)


def cell(*methods: LoweredMethod, driven: Driven | None, **uses: Any) -> tuple[Comparison, LoweredProgram]:
    """A cell whose worst output is one of `decode`: 90 % of its error are the grid of the addition there.

    `uses`: by method, the values of the addition.
    """
    lowered = replace(LOWERED, model=replace(LOWERED.model, driven=driven), methods=methods)
    rows = [
        replace(
            COMPARISON.operators[0],
            operator=named_operator(row, of_method.exported.method, len(methods[0].operators) * number),
            parts=ErrorParts(introduced_rms_steps=0.2, **uses[of_method.exported.name]),
            masked_by=(),
        )
        for number, of_method in enumerate(methods)
        for row in of_method.operators
        if row.name == "add"
    ]
    budget = share("resolution", 0.9, "decode/add"), share("unexplained", 0.1, None)
    outputs = (replace(ANSWER, method="decode"),)
    return replace(COMPARISON, outputs=outputs, operators=tuple(rows), budget=budget), lowered


def changes(comparison: Comparison, lowered: LoweredProgram) -> dict[str, list[SchemeOverride]]:
    return {new.description: new.scheme.overrides for new in candidates(comparison, lowered, scheme("16a8w"))}


ADDITION = operator("add", ADD, WIDE)
NARROWER = "a narrower fixed range for the addition layers.add"


def test_a_value_of_all_methods_of_a_model_with_states_gets_a_range_for_the_values_of_all_methods() -> None:
    methods = method("prefill", ADDITION), method("decode", ADDITION)
    offered = changes(*cell(*methods, driven=DRIVEN, prefill=PREFILL, decode=DECODE))
    # The values reach from -4 to 15, and the range is wider by a tenth of this at both ends.
    assert offered[NARROWER] == [SchemeOverride(node="node_add", range=[-5.9, 16.9])]


def test_a_node_that_is_another_operator_in_another_method_is_changed_in_its_own_method_only() -> None:
    other = replace(operator("conv", CONVOLUTION, WIDE), source_nodes=("node_add",))
    methods = method("prefill", other), method("decode", ADDITION)
    offered = changes(*cell(*methods, driven=DRIVEN, prefill=PREFILL, decode=DECODE))
    assert offered[NARROWER] == [SchemeOverride(method="decode", node="node_add", range=[-2.6, 16.6])]


def test_an_operator_that_another_line_of_the_same_module_calls_is_another_operator() -> None:
    """Encoders and decoders both add positions to what they read, in their first addition."""
    other = replace(ADDITION, stack_trace="line 9")
    offered = changes(
        *cell(method("prefill", other), method("decode", ADDITION), driven=DRIVEN, prefill=PREFILL, decode=DECODE)
    )
    assert offered[NARROWER] == [SchemeOverride(method="decode", node="node_add", range=[-2.6, 16.6])]


def test_the_readers_of_a_value_change_in_every_method() -> None:
    """In `prefill`, another operator reads the value."""
    read = operator("conv", CONVOLUTION, sources=(0,))
    other = operator("last", ADD, sources=(0,))
    add = operator("add", ADD)
    methods = method("prefill", add, other), method("decode", add, read)
    comparison, lowered = cell(*methods, driven=DRIVEN, prefill={}, decode={})
    offered = {new.description: new.scheme.overrides for new in candidates(comparison, lowered, scheme("8a8w"))}
    assert offered["16-bit activations for the addition layers.add"] == [
        SchemeOverride(node="node_add", quant_dtype="16a8w"),
        SchemeOverride(method="prefill", node="node_last", quant_dtype="16a8w"),
        SchemeOverride(method="decode", node="node_conv", quant_dtype="16a8w"),
    ]


def test_only_operators_of_the_same_method_are_behind_a_value_that_is_clipped() -> None:
    uses = {"clipped_elements": 7, "least_value": 0.0, "largest_value": 50.0}
    narrow = replace(ADDITION, quantization=BYTES)
    methods = method("decode", narrow), method("prefill", narrow)
    comparison, lowered = cell(*methods, driven=None, prefill=uses, decode=uses)
    clipped = replace(comparison, budget=(share("clipping", 0.9, "decode/add"), share("unexplained", 0.1, None)))
    first = candidates(clipped, lowered, scheme("8a8w"))[0]
    assert first.change == "a wider fixed range"
    assert [override.method for override in first.scheme.overrides] == ["decode"]


def test_the_samples_of_a_certificate_do_not_count_for_what_a_trial_promises() -> None:
    comparison, lowered = cell(method("decode", ADDITION), driven=None, decode=DECODE)
    (device,) = comparison.outputs
    unseen = replace(device, sample=2, gap=replace(device.gap, snr_db=-50.0))
    rows = (device, replace(device, rung="designed"), unseen, replace(unseen, rung="designed"))
    assert lowered.methods[0].choosable == 2
    promise = Promise(replace(comparison, outputs=rows), lowered)
    assert [*promise.design] == [("decode", 0)]


def test_a_node_that_not_every_method_has_is_changed_in_its_own_method_only() -> None:
    methods = method("prefill", operator("conv", CONVOLUTION, WIDE)), method("decode", ADDITION)
    offered = changes(*cell(*methods, driven=DRIVEN, prefill=PREFILL, decode=DECODE))
    assert offered[NARROWER] == [SchemeOverride(method="decode", node="node_add", range=[-2.6, 16.6])]


def test_the_methods_of_a_model_without_states_are_changed_one_by_one() -> None:
    methods = method("prefill", ADDITION), method("decode", ADDITION)
    offered = changes(*cell(*methods, driven=None, prefill=PREFILL, decode=DECODE))
    assert offered[NARROWER] == [SchemeOverride(method="decode", node="node_add", range=[-2.6, 16.6])]


def test_no_override_changes_an_input_that_is_a_state_of_any_method() -> None:
    methods = method("prefill", ADDITION), method("decode", ADDITION)
    facts = operator_facts(*cell(*methods, driven=DRIVEN, prefill=PREFILL, decode=DECODE))
    assert {name: row.selector is None for name, row in facts.items()} == {
        "prefill/image": True,
        "prefill/add": False,
        "decode/image": True,
        "decode/add": False,
    }
    assert [row.operator.index for row in facts.values()] == [-1, 0, -2, 1], "every operator and input has its own"


def test_rows_of_a_method_that_the_program_does_not_have_are_no_reason_for_a_change() -> None:
    comparison, lowered = cell(method("decode", ADDITION), driven=None, decode=DECODE)
    strange = replace(comparison, outputs=(replace(ANSWER, method="encode"),))
    assert candidates(strange, lowered, scheme("16a8w")) == []
