"""The blocks of code in the documents are valid: commands, options, keys, Python, YAML and JSON."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from qnnsweep.conf.describe import keys_that_begin_with
from qnnsweep.conf.places import SAMPLES_KEYS
from qnnsweep.conf.toolchains import KEYS
from qnnsweep.flows.cli.main import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^( *)(```+)(\w*)\n(.*?)^\1\2\n", flags=re.MULTILINE | re.DOTALL)
ADDED = "qnnsweep stages"
"""The command that a recipe of docs/extending.md adds; a test carries the recipe out."""
OPEN = ("model.arguments.", "calibration.arguments.", "environment.", "tolerance.", "scheme.overrides", "hydra")
"""The beginnings of keys whose last part the user chooses, and of those of Hydra's own."""


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of a document."""
    for _, _, language, text in BLOCK.findall(document.read_text()):
        yield language, textwrap.dedent(text)


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command line of a block, with the document that has it. A remark begins with `#` or three spaces."""
    for document in DOCUMENTS:
        for language, text in blocks(document):
            lines = re.sub(r"\\\n\s*", "", text).splitlines() if language in ("", "sh", "console") else []
            for line in lines:
                if line != ADDED and (command := re.match(r"(?:\$ )?qnnsweep ([^…]*?)(?:\s{3,}.*|\s+#.*)?$", line)):
                    yield document.name, command[1]


def parsed(line: str) -> tuple[Any, list[str]]:
    """Return the command that a line selects, and its other words."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize(("document", "line"), list(commands()))
def test_a_command_of_a_document_has_these_options_and_keys(document: str, line: str) -> None:
    command, words = parsed(line)
    assert "plan" not in getattr(command, "commands", {}), f"{document}: no such command"
    options = {name for parameter in command.params for name in parameter.opts}
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert asked - options == set()
    keys = [word.partition("=")[0].lstrip("+~") for word in words if re.match(r"[+~]*[a-z][\w.]*=", word)]
    assert [key for key in keys if not is_key(key)] == []


def is_key(key: str) -> bool:
    known = {*keys_that_begin_with(key), *KEYS, *SAMPLES_KEYS, "artifacts", "experiment"}
    return key in known or any(name.startswith(f"{key}.") for name in known) or key.startswith(OPEN)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_python_yaml_and_json_of_a_document_can_be_parsed(document: Path) -> None:
    parsers = {"python": ast.parse, "json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text))}
    for language, text in blocks(document):
        if language in parsers:
            parsers[language](text)
