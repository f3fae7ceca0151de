"""The message about an override that Hydra cannot parse says what is wrong, where, and what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

QUOTE = "put the value in quotes, which the shell must not remove"
NO_EQUALS = "there is no =; write key=value, for example model=digits_cnn"
EXPLANATIONS = {
    "scheme=glob(*a8w": "( (character 5 of the value) is not closed; for example scheme=glob(*a8w)",
    "scheme=8a8w,,16a8w": "there is no value before , (character 6 of the value); write scheme=8a8w,16a8w",
    "scheme=,8a8w": "there is no value before , (character 1 of the value); write scheme=8a8w",
    "scheme=8a8w,16a8w,": "there is no value after , (character 11 of the value); write scheme=8a8w,16a8w",
    "scheme=choice(8a8w,,fp16)": (
        "there is no value before , (character 13 of the value); write scheme=choice(8a8w,fp16)"
    ),
    "measure.references=[edge,]": (
        "there is no value after , (character 6 of the value); write measure.references=[edge]"
    ),
    "scheme=choice()": "choice: empty choice is not legal; for example scheme=choice(8a8w,16a8w)",
    "scheme=glob()": "glob: missing a required argument: 'include'; for example scheme=glob(*a8w)",
    "scheme=pick(8a8w)": (
        "there is no function pick; there are choice, glob, range, sort, shuffle, for example scheme=glob(*a8w)"
    ),
    "measure.iterations=range(1,": (
        "( (character 6 of the value) is not closed; for example measure.iterations=range(1,4)"
    ),
    "measure.iterations=[1,2": "[ (character 1 of the value) is not closed; write measure.iterations=[1,2]",
    "tolerance.final_snr_db={8a8w:20": (
        "{ (character 1 of the value) is not closed; write tolerance.final_snr_db={8a8w:20}"
    ),
    "tolerance.final_snr_db={8a8w=20}": (
        "= (character 6 of the value) must be a colon in a mapping; write tolerance.final_snr_db={8a8w:20}"
    ),
    "tolerance.final_snr_db={'8a8w':20}": (
        "a name in a mapping has no quotes; for example tolerance.final_snr_db={8a8w:20}"
    ),
    "measure.references=[edge)": ") (character 6 of the value) does not close [ (character 1 of the value)",
    "scheme=glob(*a8w))": (
        f") (character 11 of the value) closes no bracket; remove it, or {QUOTE}: scheme='glob(*a8w))'"
    ),
    "scheme='8a8w": "' (character 1 of the value) is not closed; write scheme='8a8w'",
    "artifacts=it's here": f"' (character 3 of the value) is not closed; {QUOTE}: artifacts=\"it's here\"",
    "artifacts=a;b": f"; (character 2 of the value) needs quotes; {QUOTE}: artifacts='a;b'",
    f"artifacts=a;{'b' * 100}": f"; (character 2 of the value) needs quotes; {QUOTE}: artifacts='…'",
    "scheme==8a8w": f"= (character 1 of the value) needs quotes; {QUOTE}: scheme='=8a8w'",
    "model": NO_EQUALS,
    "a b=3": "' ' (character 2 of the key) cannot be in a key; write key=value, for example model=digits_cnn",
    "modèl=digits_cnn": "è (character 4 of the key) cannot be in a key; write key=value, for example model=digits_cnn",
    "model=日本": f"日 (character 1 of the value) needs quotes; {QUOTE}: model='日本'",
    "tolerance.final_snr_db.8a8w=20": (
        "a name after a dot cannot begin with a digit; write tolerance.final_snr_db={8a8w:20}"
    ),
    "device.environment.API_TOKEN=a;b": "put the value in quotes",
}


def explanation(override: str) -> str:
    """Return the part of the message after the override."""
    with pytest.raises(RequestError) as caught:
        load([override])
    assert caught.value.problem.isprintable()
    return caught.value.problem.removeprefix("cannot be parsed: ")


@pytest.mark.parametrize(("override", "line"), EXPLANATIONS.items(), ids=lambda _: "")
def test_the_message_says_what_is_wrong_at_which_character_and_what_to_write(override: str, line: str) -> None:
    assert explanation(override) == line


@given(value=st.text("a,()[]{}'\"=:; *\\\n", max_size=12), function=st.sampled_from(["", "glob", "choice"]))
def test_no_message_is_that_of_hydras_parser(value: str, function: str) -> None:
    message = ""
    try:
        load([f"scheme={function}{value}"])
    except RequestError as error:
        message = error.problem
    assert message.isprintable()
    assert not [word for word in ("input '", "expecting", "EOF", "Lexer", "BRACE", "token") if word in message]
