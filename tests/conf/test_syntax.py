"""The message about an override that Hydra cannot parse says what is wrong and what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load

QUOTE = "put the value in quotes, which the shell must not remove"
COMMAS = "several values are separated by single commas, for example scheme=8a8w,16a8w"
NO_EQUALS = "there is no =; write key=value, for example model=digits_cnn"
LIST = "for example measure.references=[edge,exported]"
MAPPING = "for example tolerance.final_snr_db={8a8w:20}, whose names have no quotes"
WRONG = "no viable alternative at input"
EXPLANATIONS = {
    "scheme=glob(*a8w": f"{WRONG} 'glob(*a8w'; for example scheme=glob(*a8w)",
    "scheme=8a8w,,16a8w": f"extraneous input ','; {COMMAS}",
    "scheme=,8a8w": f"extraneous input ','; {COMMAS}",
    "scheme=8a8w,16a8w,": f"it has no end; {COMMAS}",
    "scheme=choice(8a8w,,fp16)": f"{WRONG} 'choice(8a8w,,'; for example scheme=choice(8a8w,16a8w)",
    "measure.references=[edge,]": f"{WRONG} '[edge,]'; {LIST}",
    "scheme=choice()": "choice: empty choice is not legal; for example scheme=choice(8a8w,16a8w)",
    "scheme=glob()": "glob: missing a required argument: 'include'; for example scheme=glob(*a8w)",
    "scheme=pick(8a8w)": (
        "pick: Unknown function 'pick'; there are choice, glob, range, sort, shuffle, for example scheme=glob(*a8w)"
    ),
    "measure.iterations=range(1,": f"{WRONG} 'range(1,'; for example measure.iterations=range(1,4)",
    "measure.iterations=[1,2": f"{WRONG} '[1,2'; {LIST}",
    "tolerance.final_snr_db={8a8w:20": f"{WRONG} '{{8a8w:20'; {MAPPING}",
    "tolerance.final_snr_db={8a8w=20}": f"{WRONG} '{{8a8w='; {MAPPING}",
    "tolerance.final_snr_db={'8a8w':20}": f"{WRONG} '{{'8a8w''; {MAPPING}",
    "measure.references=[edge)": f"{WRONG} '[edge)'; {LIST}",
    "scheme=glob(*a8w))": "extraneous input ')'; for example scheme=glob(*a8w)",
    "scheme='8a8w": f"\"'\" (character 8) is not closed; {QUOTE}: scheme='8a8w'",
    "artifacts=it's here": f'"\'" (character 13) is not closed; {QUOTE}: artifacts="it\'s here"',
    "artifacts=a;b": f"';' (character 12) needs quotes; {QUOTE}: artifacts='a;b'",
    f"artifacts=a;{'b' * 100}": f"';' (character 12) needs quotes; {QUOTE}: artifacts='…'",
    "scheme==8a8w": f"extraneous input '='; {QUOTE}: scheme='=8a8w'",
    "model": NO_EQUALS,
    "a b=3": "' ' cannot be in a key; write key=value, for example model=digits_cnn",
    "modèl=digits_cnn": "'è' cannot be in a key; write key=value, for example model=digits_cnn",
    "model=日本": f"'日' (character 7) needs quotes; {QUOTE}: model='日本'",
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
def test_the_message_says_what_is_wrong_and_what_to_write(override: str, line: str) -> None:
    assert explanation(override) == line


@given(value=st.text("a,()[]{}'\"=:; *\\\n", max_size=12), function=st.sampled_from(["", "glob", "choice"]))
def test_every_message_is_one_line_with_an_example(value: str, function: str) -> None:
    message = ""
    try:
        load([f"scheme={function}{value}"])
    except RequestError as error:
        message = error.problem
    assert message.isprintable()
    assert "cannot be parsed" not in message or "for example" in message or QUOTE in message
    assert not [word for word in ("expecting", "EOF", "Lexer", "BRACE", "token") if word in message]
