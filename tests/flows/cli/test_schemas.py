"""The JSON of the commands has published schemas. `tests.program.check_json` checks what all tests print with them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from qnnsweep.flows.cli.command import ON_MACHINE, Command
from qnnsweep.flows.cli.main import COMMANDS, GROUPS
from qnnsweep.flows.cli.schemas import schemas
from tests.program import Program, check_json

PUBLISHED = Path(__file__).parents[3] / "docs" / "schemas.json"
JSON = ON_MACHINE[1][0]


def names(group: str, commands: tuple[Command, ...]) -> set[str]:
    """Return the words of those commands that have the option --json."""
    return {
        f"{group} {command.name or command.body.__name__}".lstrip() for command in commands if JSON in command.shared[1]
    }


def test_every_command_with_json_has_a_published_schema():
    printing = names("", COMMANDS).union(*(names(group, commands) for group, _, commands in GROUPS))
    printing -= {"report", "recompare"}  # print what a run prints
    assert set(schemas()) == printing | {"cache", "error", "search", "report --site", "diff files", "diff --programs"}
    assert json.loads(PUBLISHED.read_text()) == schemas(), "run `qnnsweep schema > docs/schemas.json`"


@pytest.mark.parametrize("name", schemas())
def test_every_schema_is_valid_and_refuses_further_keys(name: str):
    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError, match="'surprise' was unexpected"):
        jsonschema.validate({"schema": f"qnnsweep/{name}/1", "surprise": 1}, schema | {"required": []})


def test_a_wrong_request_is_one_line_on_stderr_and_one_object_on_stdout(program: Program):
    ran = program.run("run", "model=digits_cn", "--json")
    check_json(ran.stdout)
    printed = json.loads(ran.stdout)["error"]
    assert (ran.returncode, printed["exit_code"], printed["kind"], printed["key"]) == (2, 2, "RequestError", "model")
    assert ran.stderr == f"qnnsweep: {printed['message']}\n"
    assert "digits_cnn" in printed["message"]


def test_the_schema_of_one_command_is_printed_alone(program: Program):
    assert json.loads(program.run("schema", "cache verify").stdout) == schemas()["cache verify"]
    ran = program.run("schema", "ui")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("qnnsweep: COMMAND=ui: prints no JSON; one of atlas, bisect, cache,")
