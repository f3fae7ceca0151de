"""Secrets in overrides are masked, and everything else is left as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.compose import quoted
from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load
from qnnsweep.conf.masking import mask_secrets, refuse_secrets
from qnnsweep.conf.names import MASKED_NAMES
from tests.conf.conftest import Refused

MASKED = {
    "+device.environment.TOKEN=abc": "+device.environment.TOKEN=***",
    "++device.environment.hf_token='a b'": "++device.environment.hf_token=***",
    "+device.environment.API_KEY=1.50": "+device.environment.API_KEY=***",
    "+model.arguments.password=a,b": "+model.arguments.password=***",
    "+model.evaluation.arguments.aws.secret.name=a": "+model.evaluation.arguments.aws.secret.name=***",
    "device.environment={TOKEN: abc, SIZE: abcd}": "device.environment={TOKEN: ***, SIZE: ***d}",
    "device.environment={TOKEN: 12, SIZE: 3}": "device.environment=***",
    "model.calibration={source: a:b, arguments: {x: 1, keys: [p, q]}}": (
        "model.calibration={source: a:b, arguments: {x: 1, keys: [***, ***]}}"
    ),
}
UNCHANGED = [
    "model=digits_cnn,minilm_l6", "scheme=glob(*)", "measure.iterations=range(1,4)", "device.ssh.password_variable=P",
    "device.ssh.key_file=/home/me/.ssh/id", "+device.environment.LD_LIBRARY_PATH=/lib", "+model.arguments.tokenizer=t",
    "+model.arguments.max_token_length=8", "+device.environment.TOKEN=${oc.env:TOKEN}", "~device.environment.TOKEN",
    "+device.environment.TOKEN='${oc.env:TOKEN}'", "+device.environment.TOKEN=null", "scheme.name=token",
]  # fmt: skip


@pytest.mark.parametrize(("override", "masked"), MASKED.items(), ids=lambda _: "")
def test_a_secret_is_masked(override: str, masked: str) -> None:
    assert mask_secrets([override], MASKED_NAMES) == [masked]


def test_everything_else_is_unchanged() -> None:
    assert mask_secrets(UNCHANGED, MASKED_NAMES) == UNCHANGED


@given(secret=st.text(st.characters(codec="utf-8", exclude_characters="*$"), min_size=1), in_mapping=st.booleans())
def test_no_quoted_text_escapes_the_mask(secret: str, in_mapping: bool) -> None:
    key = "device.environment"
    override = f"{key}={{TOKEN:{quoted(secret)}}}" if in_mapping else f"+{key}.TOKEN={quoted(secret)}"
    value = mask_secrets([override], MASKED_NAMES)[0].partition("=")[2]
    assert value == "***" or (in_mapping and secret not in value.removeprefix("{TOKEN:").removesuffix("}"))


def test_the_names_of_secrets_can_be_configured() -> None:
    overrides = ["masked_names='^PIN$'", "+device.environment.PIN=1234", "+device.environment.TOKEN=a"]
    plan = load(overrides)
    assert mask_secrets(overrides, plan.masked_names) == [overrides[0], "+device.environment.PIN=***", overrides[2]]
    assert plan.cells[0].request.device.environment == {"PIN": "1234", "TOKEN": "a"}


def test_a_wrong_regular_expression_is_refused(refused: Refused) -> None:
    for others in ([], ["model.evaluation.count=2"]):
        assert refused("masked_names='('", *others).startswith("masked_names=(: not a regular expression: ")


@pytest.mark.parametrize(
    "override", ["soc.arch=x", "+device.environment.TOKEN=other", "+device.environment.TOKEN={"], ids=str
)
def test_no_error_message_contains_the_secret(override: str) -> None:
    with pytest.raises(RequestError) as caught:
        load(["+device.environment.TOKEN=the-secret", override.replace("{", "the-secret{")])
    assert "the-secret" not in str(caught.value)


def test_a_secret_for_a_prefect_server_is_refused_without_the_secret() -> None:
    with pytest.raises(RequestError) as caught:
        refuse_secrets(["model=digits_cnn", "+device.environment.TOKEN=the-secret"], MASKED_NAMES)
    assert str(caught.value) == (
        "+device.environment.TOKEN: the Prefect server would store this secret; write ${oc.env:VARIABLE} and set the "
        "environment variable wherever the sweep runs"
    )
    refuse_secrets(["model=digits_cnn", "+device.environment.TOKEN=${oc.env:TOKEN}"], MASKED_NAMES)
