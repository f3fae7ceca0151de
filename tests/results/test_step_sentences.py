"""The sentences about the steps of a model with states."""

from __future__ import annotations

from dataclasses import replace

from qnnsweep.tasks.results.step_sentences import step_sentences

from tests.sample_records import ANSWER, STEP  # isort: skip

FIRST = replace(STEP, step=0, method="prefill", token=3, token_reference=3, total_snr_db=50.0, origin="introduced")
SECOND = replace(STEP, method="decode", token=4, token_reference=4, total_snr_db=30.0, origin="inherited")
FLIP = replace(SECOND, token=5, margin=0.5, score_error=0.125, origin="introduced")
OUTPUT = replace(ANSWER, method="decode", sample=SECOND.method_sample)
LOWEST = 'The worst output is that of step 1 (decode) of "a", most of it '


def test_the_worst_step_and_equal_tokens_are_stated() -> None:
    assert list(step_sentences([FIRST, SECOND], OUTPUT)) == [
        f"{LOWEST}inherited from the state and the token that the device had.",
        "All tokens of 1 sequence are those of eager PyTorch.",
    ]


def test_the_first_token_that_differs_is_named_with_its_margin() -> None:
    assert list(step_sentences([FIRST, FLIP, replace(FIRST, sample=1), replace(SECOND, sample=1)], OUTPUT)) == [
        f"{LOWEST}introduced by the step itself.",
        (
            '1 of 2 sequences have a token that differs, the first in step 1 (decode) of "a": its margin is 0.5, and '
            "a score is off by up to 0.125."
        ),
    ]
    near = list(step_sentences([FIRST, replace(FLIP, margin=0.2)], OUTPUT))[1]
    assert near.endswith("off by up to 0.125, so the two tokens were nearly equally good.")


def test_an_error_that_the_debug_program_does_not_have_is_one_of_fusion() -> None:
    fused = replace(SECOND, origin="introduced", introduced_snr_db=31.0, debug_introduced_snr_db=49.0)
    assert next(iter(step_sentences([FIRST, fused], OUTPUT))) == (
        f"{LOWEST}introduced by the step itself. On the same inputs the debug program is at 49.0 dB, so it is what the "
        "compiler fuses."
    )


def test_the_step_is_that_of_the_reported_output() -> None:
    other = replace(OUTPUT, method="prefill", sample=FIRST.method_sample)
    assert next(iter(step_sentences([FIRST, SECOND], other))) == (
        'The worst output is that of step 0 (prefill) of "a", most of it introduced by the step itself.'
    )
    assert list(step_sentences([FIRST, SECOND], None)) == ["All tokens of 1 sequence are those of eager PyTorch."]


def test_a_recurrent_model_has_no_sentence_about_tokens_and_one_step_has_none_at_all() -> None:
    assert len(list(step_sentences([replace(FIRST, token=None), replace(SECOND, token=None)], OUTPUT))) == 1
    assert list(step_sentences([FIRST], OUTPUT)) == []


def test_what_a_wrong_step_computes_with_is_stated_once_per_mistake() -> None:
    wrong = [replace(SECOND, step=number, mistake="position_later", first_wrong_state="k_0") for number in (1, 2, 3)]
    assert next(iter(step_sentences([FIRST, *wrong], None))) == (
        'Step 1 (decode) of "a" computes with positions that are too large by one, as 2 more.'
    )
    unknown = replace(SECOND, first_wrong_state="v_1")
    assert 'The first wrong cache is v_1, in step 1 (decode) of "a".' in step_sentences([FIRST, unknown], None)


def test_a_repetition_that_eager_pytorch_does_not_have_is_stated() -> None:
    steps = [replace(SECOND, step=number, token=7 + number % 2, token_reference=number) for number in range(10)]
    sentence = "1 of 1 sequence end in a repetition that eager PyTorch does not have."
    assert sentence in list(step_sentences(steps, None))
    both = [replace(step, token_reference=1 + step.step % 2) for step in steps]
    assert sentence not in list(step_sentences(both, None))
    fine = [replace(step, sample=1, token=step.step, token_reference=1 + step.step % 2) for step in steps]
    assert sentence.replace("1 of 1 sequence", "1 of 2 sequences") in list(step_sentences([*steps, *fine], None))


def test_names_in_the_sentence_of_a_mistake_stay_as_they_are() -> None:
    wrong = replace(SECOND, sample_name="A Man", mistake="other_rotation")
    sentence = 'Step 1 (decode) of "A Man" computes with another rotation of the keys (RoPE).'
    assert sentence in list(step_sentences([FIRST, wrong], None))
