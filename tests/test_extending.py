"""Every recipe of docs/extending.md is carried out in a copy of the project, where its checks then pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.copies import copy_file
from tests.program import Program

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "extending.md"
KINDS = (
    *("SoC", "scheme", "model", "transport", "metric on request", "metric in every row", "table column"),
    *("report panel", "command", "stage", "backend"),
)
DEADLINE_S = 300


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, the path in its first line, and the other lines."""

    language: str
    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A section of the document."""

    title: str
    blocks: list[Block]

    def carry_out(self, folder: Path) -> None:
        """Create the files and make the changes that the section shows."""
        for block in self.blocks:
            file = folder / block.path
            if block.language == "diff":
                file.write_text(changed(file.read_text(), block))
            elif block.language != "sh":
                file.parent.mkdir(parents=True, exist_ok=True)
                assert not file.exists(), f"{block.path} exists: show the change as a diff"
                file.write_text(block.text)

    @property
    def checks(self) -> list[str]:
        return [line for block in self.blocks if block.language == "sh" for line in block.text.splitlines()]


def recipes() -> Mapping[str, Recipe]:
    sections = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    return {title: Recipe(title=title, blocks=blocks(text)) for title, _, text in (s.partition("\n") for s in sections)}


def blocks(section: str) -> list[Block]:
    """Return the fenced blocks of a section. The first line of a file's block is a comment that names the file."""
    fenced = re.findall(r"^```(\w+)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return [block(language, text) for language, text in fenced]


def block(language: str, text: str) -> Block:
    if language == "sh":
        return Block(language=language, path="", text=text)
    first, _, rest = text.partition("\n")
    path = re.sub(r"^(#|//|--- )\s*", "", first)
    return Block(language=language, path=path, text=rest)


def changed(text: str, change: Block) -> str:
    """Return the text after a change, whose unchanged and removed lines must occur in the text exactly once."""
    for hunk in re.split(r"^@@.*\n", change.text, flags=re.MULTILINE):
        lines = [line if line.strip() else f" {line}" for line in hunk.splitlines(keepends=True)]
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if lines:
            assert text.count(before) == 1, f"{change.path} has these lines {text.count(before)} times:\n{before}"
            text = text.replace(before, after)
    return text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project: its tracked files."""
    listed = ["git", "-c", f"safe.directory={ROOT}", "ls-files"]  # the checkout can be another user's
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).exists():
            (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


def run(line: str, project: Path, server: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in the copy; `qnnsweep` and `pytest` are those of the copy.

    `server`: the variables with the Prefect server of `qnnsweep`. Without one, each of its runs starts a server.
    """
    programs = project.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name, code in (
        ("qnnsweep", f"import os; os.environ |= {server}; from qnnsweep.flows.cli.main import main; main()"),
        ("pytest", "import sys, pytest; sys.exit(pytest.main(['-n0', '-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"),
    ):
        program = programs / name
        program.write_text(f"#!{sys.executable}\nif __name__ == '__main__':\n    {code}\n")
        program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project / "src"),
        "PREFECT_HOME": str(project.parent / "prefect"),
        "COLUMNS": "160",
    }
    return subprocess.run(
        ["sh", "-c", line],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_there_is_a_recipe_for_every_kind_of_extension() -> None:
    assert list(recipes()) == [f"Add a {kind}".replace("a SoC", "an SoC") for kind in KINDS]


@pytest.mark.parametrize("title", recipes())
def test_the_changes_of_a_recipe_fit_the_project(title: str, project: Path) -> None:
    recipes()[title].carry_out(project)


@pytest.mark.slow
@pytest.mark.parametrize("title", recipes())
def test_a_recipe_carried_out_in_a_copy_passes_its_own_checks(
    title: str, project: Path, served_program: Program
) -> None:
    recipe = recipes()[title]
    server = {name: text for name, text in served_program.environment.items() if name.startswith("PREFECT_API_")}
    recipe.carry_out(project)
    assert recipe.checks
    for line in recipe.checks:
        done = run(line, project, server)
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
