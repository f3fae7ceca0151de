"""The sentence about a cell, from sample records."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.schema import Request
from qnnsweep.conf.schemes import Precision
from qnnsweep.tasks.errors import DeviceError
from qnnsweep.tasks.records import Comparison, Cures, DebugProgram, ErrorParts, ErrorShare, Quantization
from qnnsweep.tasks.records.vocabulary import CAUSES, Cause, Verdict
from qnnsweep.tasks.results.causes import causes
from qnnsweep.tasks.results.diagnosis import repair_target_db
from tests.results.diagnosed import cured_cell, diagnosed
from tests.sample_records import two_methods_cell

from tests.sample_records import (  # isort: skip
    ANSWER, COMPARISON, CONV, LOWERED, LOWERED_METHOD, passed_cell, up_to_lower, without_debug_program,
)  # fmt: skip

DEVICE = "Device against host: 45.0 dB."
NOT_THE_CAUSE = "Not the device: 45.0 dB."
INF = float("inf")


def share(
    cause: Cause, value: float, name: str | None = None, module: str | None = None, why: str | None = None
) -> Any:
    return ErrorShare(
        output_index=0, output="logits", cause=cause, operator=name, operator_index=0, module_path=module, share=value,
        share_error=0.0, alone_snr_db=20.0, without_snr_db=None, sample=1, why=why,
    )  # fmt: skip


def totals(unexplained: float = 0.0, why: str | None = None, **causes: float) -> list[Any]:
    shares: Any = {cause: causes.get(cause, 0.0) for cause in CAUSES if cause != "unexplained"}
    return [*(share(cause, value) for cause, value in shares.items()), share("unexplained", unexplained, why=why)]


def additions(count: int, **parts: Any) -> Comparison:
    """Return the comparison of `count` additions, each in a module of its own."""
    qparams = Quantization(scale=(1.0,), zero_point=(65535,), quant_min=0, quant_max=65535, dtype="uint16", axis=None)
    rows = [
        replace(
            COMPARISON.operators[0], sample=1,
            operator=replace(
                CONV, index=number, name=f"add_{number}", target="aten.add.Tensor", module_path=f"layers.{number}",
                quantization=qparams,
            ),
            parts=ErrorParts(**parts),
        )
        for number in range(count)
    ]  # fmt: skip
    return replace(COMPARISON, operators=tuple(rows))


REPRO = " Next: `qnnsweep repro digits_cnn/8a8w/SM8650`."


def diagnosed_causes(planned: Request, comparison: Comparison) -> str:
    """Return the part of the sentence about the causes."""
    sentence = diagnosed(passed_cell(planned, comparison=comparison))
    begin, ends = "Worst sample (b) 30.0 dB: ", (f". {DEVICE}", f". {NOT_THE_CAUSE}")
    assert sentence.startswith(begin)
    assert sentence.removesuffix(REPRO).endswith(ends)
    return sentence.removeprefix(begin).removesuffix(REPRO).removesuffix(ends[0]).removesuffix(ends[1])


def test_the_device_is_the_cause_of_an_error_only_from_a_tenth_of_it(planned: Request) -> None:
    def said(**shares: float) -> str:
        return diagnosed(passed_cell(planned, comparison=replace(additions(1), budget=tuple(totals(**shares)))))

    assert said(weights=0.95, device=0.05).endswith(NOT_THE_CAUSE)
    assert said(weights=0.91, device=0.03, observer=0.03, unexplained=0.03).endswith(NOT_THE_CAUSE)
    for shares in ({"device": 0.1}, {"observer": 0.1}, {"unexplained": 0.1}):
        assert DEVICE in said(weights=0.9, **shares)
    outputs = tuple(replace(row, previous_snr_db=39.0) for row in COMPARISON.outputs)
    near = replace(additions(1), outputs=outputs, budget=tuple(totals(weights=1.0)))
    assert "Device against host: 39.0 dB." in diagnosed(passed_cell(planned, comparison=near)), "the two are 9 dB apart"
    no_budget = passed_cell(planned, comparison=replace(additions(1), budget=()))
    assert diagnosed(no_budget).endswith(f"30.0 dB. {DEVICE}")


def test_a_limit_is_beside_the_number_that_is_judged(planned: Request) -> None:
    request = replace(planned, tolerance=replace(planned.tolerance, final_snr_db={"8a8w": 25.0}))
    assert diagnosed(passed_cell(request)).startswith("Worst sample (b) 30.0 dB (limit 25): ")


def test_causes_in_several_operators_name_the_one_whose_absence_removes_most(planned: Request) -> None:
    shares = [share("resolution", 0.25, f"add_{number}", f"layers.{number}") for number in range(6)]
    comparison = replace(additions(6), budget=(*totals(resolution=0.91, device=0.09), *shares))
    assert diagnosed_causes(planned, comparison) == "the grids of 6 additions (most: `layers.0`) 91 %, rest 9 %"


def test_the_operator_that_is_named_is_counted_even_if_its_error_alone_is_small(planned: Request) -> None:
    shares = [share("weights", 0.003, "add_0", "layers.0"), share("weights", 0.014, "add_1", "layers.1")]
    comparison = replace(additions(2), budget=(*totals(weights=0.71, resolution=0.29), *shares))
    assert diagnosed_causes(planned, comparison) == (
        "weights of 2 additions (most: `layers.0`) 71 %, rounding of values 29 %"
    )


def test_shares_in_whole_percent_add_up_to_100(planned: Request) -> None:
    comparison = replace(additions(1), budget=totals(resolution=0.446, weights=0.437, device=0.117))
    assert diagnosed_causes(planned, comparison) == "rounding of values 44 %, weights 44 %, device arithmetic 12 %"
    comparison = replace(additions(1), budget=totals(device=1.424, resolution=-0.424))
    assert diagnosed_causes(planned, comparison) == "device arithmetic 142 %"


def test_a_first_cause_without_the_largest_share_says_why_it_is_the_first(planned: Request) -> None:
    shares = [share("weights", 0.06, f"add_{number}", f"layers.{number}") for number in range(2)]
    comparison = replace(additions(2), budget=(*totals(weights=0.11, resolution=0.89), *shares))
    assert diagnosed_causes(planned, comparison) == (
        "weights of 2 additions (most of all: `layers.0`) 11 %, rounding of values 89 %"
    )


def test_one_operator_stands_for_its_cause_and_for_the_next_cause(planned: Request) -> None:
    shares = [share("clipping", 0.7, "add_0", "head"), share("resolution", 0.2, "add_0", "head")]
    comparison = replace(additions(2), budget=(*totals(clipping=0.72, resolution=0.19, weights=0.09), *shares))
    assert diagnosed_causes(planned, comparison) == "clipping in `head` 72 %, its grid 19 %, rest 9 %"


def test_a_constant_that_is_added_is_not_called_weights(planned: Request) -> None:
    comparison = replace(additions(2), budget=(*totals(weights=1.0), share("weights", 1.0, "add_0", "head")))
    assert diagnosed_causes(planned, comparison) == "the rounded constant of `head` 100 %"


def test_of_several_grids_that_are_hardly_used_the_first_one_has_the_number_of_codes(planned: Request) -> None:
    shares = [share("resolution", 0.25, f"add_{number}", f"layers.{number}") for number in range(2)]
    comparison = replace(additions(2, range_used=0.001, codes_used=3), budget=(*totals(resolution=1.0), *shares))
    assert diagnosed_causes(planned, comparison) == (
        "the grids of 2 additions (most: `layers.0`, which uses 3 of 65536 values) 100 %"
    )


def test_an_error_that_the_debug_program_does_not_have_names_the_operators_that_are_wrong_in_it(
    planned: Request,
) -> None:
    whole = additions(5)
    first, *others = whole.operators
    right, wrong = replace(first, verdict="within_grid"), [replace(row, verdict="introduced") for row in others]
    clipping = share("clipping", 0.05, "add_0", "layers.0")
    comparison = replace(whole, operators=(right, *wrong), budget=(*totals(observer=1.0), clipping))
    assert diagnosed_causes(planned, comparison) == (
        "an error that vanishes while operators are logged (the debug program is wrong in `layers.1`, `layers.2`, "
        "`layers.3` and 1 more) 100 %"
    )
    comparison = replace(comparison, operators=(right, wrong[0]))
    assert "is wrong in `layers.1`) 100 %" in diagnosed_causes(planned, comparison)


def test_a_value_that_hardly_uses_its_grid_is_described_by_the_number_of_codes(planned: Request) -> None:
    comparison = replace(
        additions(1, range_used=0.001, codes_used=70),
        budget=(*totals(resolution=1.0), share("resolution", 1.0, "add_0", "layers.0")),
    )
    assert diagnosed_causes(planned, comparison) == "the grid of `layers.0` (uses 70 of 65536 values) 100 %"


def test_the_operator_that_is_ranked_first_belongs_to_the_cause_that_is_named_first(planned: Request) -> None:
    shares = [share("bias", 0.4, "add_0", "stem"), *(share("weights", 0.1, f"add_{n}", f"l.{n}") for n in range(1, 4))]
    comparison = replace(additions(4), budget=(*totals(weights=0.55, bias=0.45), *shares))
    assert diagnosed_causes(planned, comparison) == (
        "the bias of `stem` does not fit its grid 45 %, weights of 3 additions (most: `l.1`) 55 %"
    )


def test_an_operator_without_a_module_is_named_by_the_line_of_the_users_model(planned: Request) -> None:
    comparison = additions(1)
    trace = 'File "/home/me/lib/torch.py", line 3, in f\nFile "/home/me/net.py", line 14, in forward\n    x = a + b\n'
    operator = replace(comparison.operators[0].operator, module_path="", stack_trace=trace)
    comparison = replace(comparison, operators=(replace(comparison.operators[0], operator=operator),))
    budget = (*totals(device=1.0), share("device", 1.0, "add_0", ""))
    assert diagnosed_causes(planned, replace(comparison, budget=budget)) == (
        "device arithmetic in `add_0` (net.py:14) 100 %"
    )


def test_the_input_of_the_model_is_called_an_input(planned: Request) -> None:
    comparison = replace(additions(1), budget=(*totals(clipping=1.0), share("clipping", 1.0, "image", "")))
    assert diagnosed_causes(planned, comparison) == "clipping in the input `image` 100 %"


def test_a_float_scheme_has_no_cures(planned: Request) -> None:
    fp16 = replace(planned, scheme=replace(planned.scheme, precision=Precision.float16))
    sentence = diagnosed(passed_cell(fp16, comparison=additions(1), cures=Cures(trials=())))
    assert sentence.endswith("No cure is tried for a float scheme.")


def test_the_next_command_for_an_operator_that_the_device_computes_wrongly_shows_its_error(planned: Request) -> None:
    whole, budget = additions(1), (*totals(device=1.0), share("device", 1.0, "add_0", "layers.0"))

    def ends_with_repro(verdict: Verdict) -> bool:
        operators = tuple(replace(row, verdict=verdict) for row in whole.operators)
        cell = passed_cell(planned, comparison=replace(whole, operators=operators, budget=budget))
        return diagnosed(cell).endswith(REPRO)

    assert ends_with_repro("introduced")
    assert not ends_with_repro("within_grid")


def test_an_error_of_the_graph_is_all_that_a_sentence_says(planned: Request) -> None:
    why = "the lowered graph is another function than the model"
    changed = replace(LOWERED, methods=(replace(LOWERED_METHOD, graph_change=why),))
    assert diagnosed(passed_cell(planned, lowered=changed)) == f"30.0 dB: {why}."


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("graph", "the converted graph itself 100 %"),
        ("overflow", "float16 overflow 100 %"),
        (
            "observer",
            "an error that vanishes while operators are logged (the debug program is wrong in `layers.0`) 100 %",
        ),
    ],
)
def test_a_cause_without_an_operator_has_a_name(planned: Request, cause: Cause, words: str) -> None:
    assert diagnosed_causes(planned, replace(additions(1), budget=tuple(totals(**{cause: 1.0})))) == words


def test_an_unexplained_share_has_its_reason(planned: Request) -> None:
    comparison = replace(additions(1), budget=tuple(totals(0.6, "aten.heaviside has no derivative", weights=0.4)))
    assert diagnosed_causes(planned, comparison) == (
        "unexplained 60 %, weights 40 %, because aten.heaviside has no derivative"
    )


def test_wrong_booleans_are_named_beside_an_unexplained_share(planned: Request) -> None:
    comparison = additions(1, introduced_differing=3)
    assert comparison.operators[0].verdict == "introduced"
    comparison = replace(comparison, budget=tuple(totals(0.6, weights=0.4)))
    assert diagnosed_causes(planned, comparison) == (
        "unexplained 60 %, weights 40 %, and the device computes wrong booleans or integers in layers.0"
    )


def test_a_sentence_about_the_worst_sample_does_not_use_the_causes_of_another_sample(planned: Request) -> None:
    clipped = replace(ANSWER, sample=2, sample_name="c", gap=replace(ANSWER.gap, snr_db=11.0))
    budget = (*totals(weights=1.0), share("weights", 1.0, "conv", "layers.0"))
    comparison = replace(COMPARISON, outputs=(*COMPARISON.outputs, clipped), budget=budget)
    assert diagnosed(passed_cell(planned, comparison=comparison)).startswith(f"Worst sample (c) 11.0 dB. {DEVICE}")


@given(st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8).filter(lambda values: sum(values) > 0))
def test_the_percentages_add_up_to_one_hundred(values: list[float]) -> None:
    shares: Any = {cause: value / sum(values) for cause, value in zip(list(CAUSES)[:8], values, strict=True)}
    sentence = causes(replace(COMPARISON, budget=tuple(totals(**shares))), replace(ANSWER, sample=1))
    assert sentence is not None
    assert sum(int(number) for number in re.findall(r"(\d+) %", sentence)) in (100, 101) or "no cause" in sentence


def test_equal_outputs_have_no_causes(planned: Request) -> None:
    equal = replace(ANSWER, status="exact", gap=replace(ANSWER.gap, mse=0.0, snr_db=None), previous_snr_db=None)
    comparison = replace(COMPARISON, outputs=(replace(equal, previous_status="exact"),), budget=())
    assert diagnosed(passed_cell(planned, comparison=comparison)) == (
        "The final outputs are those of eager PyTorch, bit by bit. "
        "The device computes the scheme exactly as the host does."
    )


def test_an_output_with_nans_is_named(planned: Request) -> None:
    comparison = replace(COMPARISON, outputs=(replace(ANSWER, status="nonfinite_differs"),))
    assert diagnosed(passed_cell(planned, comparison=comparison)).startswith("Output logits of a: ")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["model=/my nets/net.yaml", "scheme=s.yaml"], "'model=/my nets/net.yaml' scheme=s.yaml soc=SM8650"),
        (
            ["model=digits_cnn", "soc=SM8650", "scheme.overrides=[{node:fc,range:[-1,1]}]"],
            "model=digits_cnn scheme=8a8w soc=SM8650 'scheme.overrides=[{node:fc,range:[-1,1]}]'",
        ),
        (["++model.name=mine", "backend=own"], "scheme=8a8w soc=SM8650 backend=own ++model.name=mine"),
        (["scheme=8a8w", "experiment=night"], "scheme=8a8w experiment=night"),
    ],
)
def test_the_command_makes_the_program_of_the_cell_again(words: list[str], command: str, planned: Request) -> None:
    sentence = diagnosed(cured_cell(replace(planned, program_words=words), (1e-6, 1e-5), None))
    assert f"Next: `qnnsweep repair {command} target.final_snr_db=40`" in sentence


def test_without_operators_the_reason_is_that_of_the_lowering(planned: Request) -> None:
    assert diagnosed(without_debug_program(planned)).endswith(
        "Without operators, the causes are unknown: already inserted."
    )


def test_a_cell_that_was_not_compared_has_its_outcome_and_its_error(planned: Request) -> None:
    assert diagnosed(up_to_lower(planned, "deploy", DeviceError("unplugged\nand more"))) == (
        "infrastructure in deploy: unplugged"
    )


def test_a_method_without_a_debug_program_is_named_although_another_method_has_one(planned: Request) -> None:
    cell = two_methods_cell(planned, debug_programs=(DebugProgram(program=None, unavailable="already inserted"),))
    assert "Without the operators of decode, the causes of its error are unknown: already inserted." in diagnosed(cell)
    every = replace(cell, comparison=replace(COMPARISON, operators=(), budget=()))
    assert diagnosed(every).endswith("Without operators, the causes are unknown: already inserted.")


@pytest.mark.parametrize(
    ("noise", "refused", "sentence"),
    [
        (
            (1e-6, 1e-5), None,
            ("Next: `qnnsweep repair model=digits_cnn scheme=8a8w soc=SM8650 target.final_snr_db=40` "
            "(16-bit float for the convolution layers.0: +20.0 dB predicted, +20.0 to +25.0 per sample)."),
        ),
        (
            (3.176e-4, 1e-5), None,
            ("Next: `qnnsweep repair model=digits_cnn scheme=8a8w soc=SM8650 target.final_snr_db=32` "
            "(16-bit float for the convolution layers.0: +5.0 dB predicted, +0.0 to +20.0 per sample)."),
        ),
        (
            (3.162e-5, 1e-4), None,
            ("Next: `qnnsweep repair model=digits_cnn scheme=8a8w soc=SM8650 target.final_snr_db=35` "
            "(16-bit float for the convolution layers.0: +10.0 dB predicted)."),
        ),
        (
            (2.239e-4, 7.079e-4), None,
            ("Next: `qnnsweep repair model=digits_cnn scheme=8a8w soc=SM8650 target.final_snr_db=31` "
            "(16-bit float for the convolution layers.0: +1.5 dB predicted)."),
        ),
        (
            (9e-4, 9e-4), None,
            "No cure known: 16-bit float for the convolution layers.0 gains +0.5 dB.",
        ),
        (
            (), "could not create op",
            "No cure known: 16-bit float for the convolution layers.0 cannot be compiled.",
        ),
    ],
)  # fmt: skip
def test_a_sentence_names_only_a_change_that_was_tried_and_helps(
    planned: Request, noise: tuple[float, ...], refused: str | None, sentence: str
) -> None:
    cell = cured_cell(planned, noise, refused)
    assert diagnosed(cell).endswith(sentence)
    assert "Next" not in diagnosed(replace(cell, cures=Cures(trials=())))


@pytest.mark.parametrize(
    ("snr_db", "gain_db", "limit_db", "target_db"),
    [
        (30.0, 5.0, 33.5, 34), (30.0, 20.0, 33.5, 40), (30.4, 1.0, None, 31), (-12.2, 4.0, None, -11),
        (30.0, INF, None, 50), (30.0, 100.0, INF, 50), (None, INF, 12.0, 12), (-INF, 30.0, None, 10),
    ],
)  # fmt: skip
def test_the_target_of_a_repair_is_the_limit_or_half_of_the_gain(
    snr_db: float | None, gain_db: float, limit_db: float | None, target_db: int
) -> None:
    assert repair_target_db(snr_db, limit_db, gain_db) == target_db
