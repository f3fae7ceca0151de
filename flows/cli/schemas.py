"""The command `qnnsweep schema`: the JSON schemas of what the commands print with `--json`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, get_args, get_origin

import typer

from qnnsweep.conf.errors import RequestError, one_of
from qnnsweep.flows.cli.command import JSON_VERSION, Output, Words


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema (draft 2020-12) of each command's object, by the words of the command."""
    from qnnsweep.flows.cli.printed import PRINTED

    return {name: _schema(name, *printed) for name, printed in PRINTED.items()}


def schema(
    _: Words,
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="Such as run or 'cache verify'. By default all.")
    ] = None,
) -> Output:
    """Print the JSON schema of what a command prints with --json, as one JSON object."""
    found = schemas()
    if command is not None and command not in found:
        raise RequestError(f"prints no JSON; {one_of(found)}", key="COMMAND", value=command)
    if command is not None:
        return Output(parts=[json.dumps(found[command], indent=1)])
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    return Output(parts=["{\n" + ",\n".join(lines) + "\n}"])


def _schema(name: str, record: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Schema(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - none has one
            return False

        def float_schema(self, schema: Any) -> dict[str, Any]:
            return {"anyOf": [super().float_schema(schema), {"enum": ["inf", "-inf", "nan"]}]}

    def of(hint: Any) -> dict[str, Any]:
        return TypeAdapter(hint).json_schema(mode="serialization", schema_generator=Schema)

    whole: dict[str, Any] = of(record) if record else {"type": "object"}
    definitions = dict(whole.pop("$defs", {}))
    properties = {"schema": {"const": f"qnnsweep/{name}/{JSON_VERSION}"}, **whole.get("properties", {})}
    required = ["schema", *whole.get("required", ())]
    for key, hint in others.items():
        is_optional = get_origin(hint) is NotRequired
        properties[key] = of(get_args(hint)[0] if is_optional else hint)
        definitions |= properties[key].pop("$defs", {})
        required += [] if is_optional else [key]
    whole |= {"properties": properties, "required": required} | ({"$defs": definitions} if definitions else {})
    for part in (whole, *definitions.values()):
        if "additionalProperties" not in part:
            part["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "title": f"qnnsweep {name} --json"}
