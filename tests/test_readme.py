"""The documents are true: their commands are valid, the linked files exist, and all tables are named."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from qnnsweep.tasks.storage.tables import TABLES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text()
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    """Return the complete `qnnsweep run` commands of the README and of docs/sweeps.md, without remarks."""
    lines = re.findall(r"^qnnsweep run (.+)$", f"{README}\n{SWEEPS}", flags=re.MULTILINE)
    return [re.split(r"\s{3,}", line)[0] for line in lines if "…" not in line]


def test_there_are_commands_to_try() -> None:
    assert len(commands()) >= 4


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_is_a_plan_without_an_impossible_cell(command: str) -> None:
    cells = load(shlex.split(command)).cells
    assert [cell.request.names for cell in cells if cell.impossible and "experiment" not in command] == []


@pytest.mark.parametrize("setting", re.findall(r"`((?:scheme|tolerance)\.\S+?=\S+?)`", SWEEPS))
def test_a_setting_of_the_page_on_sweeps_is_valid(setting: str) -> None:
    assert len(load([setting]).cells) == 1


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_links_to_files_that_exist(document: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", document.read_text()) if "://" not in target]
    assert targets
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_tests_that_a_document_names_exist(document: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert named or document.name != "security.md"


def test_every_line_of_the_page_on_security_names_its_test() -> None:
    lines = re.findall(r"^\| (?!what holds)(.*) \|$", (ROOT / "docs" / "security.md").read_text(), flags=re.MULTILINE)
    assert len(lines) > 20
    assert [line for line in lines if "`tests/" not in line] == []


def test_the_page_on_results_names_every_table() -> None:
    results = (ROOT / "docs" / "results.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", results, flags=re.MULTILINE) == list(TABLES)


def test_the_readme_is_short_and_the_index_links_every_page() -> None:
    assert len(README.encode()) <= 8 * 1024
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - set(re.findall(r"\]\(([\w.]+\.md)\)", (ROOT / "docs" / "index.md").read_text())) == set()


def test_the_targets_of_the_readme_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make (\w+)`", README)):
        assert f"\n{target}:" in makefile


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    pinned = {
        re.split("==", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {re.split(r"[\[<>=!~ ]", name)[0].lower().replace("_", "-") for name in wanted}
    assert names - pinned == set()
