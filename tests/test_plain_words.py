"""Names and prose use the field's own words: docs/architecture.md has the rules.

A word on this list was once used for several things at a time, or is a private word for something that has a term.
The golden has the places where such a word is still used. It may only become shorter: `python -m
tests.test_plain_words` writes it again.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "goldens" / "remaining_words.json"

BANNED_NAMES = frozenset(
    {
        # loop and helper variables: the noun of what is looped over
        *("each", "one", "found", "told", "said", "given", "made", "kept", "seen", "shown", "taken", "took"),
        *("whose", "own", "matter", "anew", "means", "hearers", "heard", "tell", "works", "drawn", "laid"),
        # flows
        *("Means", "Work", "Begun", "Computed", "computed", "settled", "subject_of", "judged_by", "suits", "Watch"),
        *("watcher", "Sighting", "Pace", "end_after", "dasks", "cut", "Part", "told", "notify_all"),
        # workers
        *("Children", "Child", "GroundChild", "Ground", "be_ground", "Places", "places", "Took", "Expected", "Weight"),
        *("weigh", "Finished", "settle", "bound", "kept_as", "_KeptKeys", "_KeptRecords", "_WholeFiles"),
        # toolchain and numerics
        *("_Links", "_Lines", "homes", "_swallowed", "_ends", "_unviewed", "_GIVES_ON", "_ROUNDS", "Delegation"),
        *("noted", "_NotingPartitioner", "_speaker", "Readers", "movers", "picks", "doubtful", "guilty"),
        *("discarding", "Seen", "Captured", "grid", "reals", "in_reference_world", "measured_by", "_Judge"),
        # storage, devices, conf, report
        *("unpublished", "owned_name", "is_abandoned", "push_whole", "pull_whole", "reveal"),
        *("try_out", "sweep_partial", "lay_out", "laid_out", "Holdings", "UNHELD_S", "Removal", "in_use", "TEXT"),
        *("REAL", "WHOLE", "FLAG", "Busy", "Exclusion", "leased", "is_of", "refusal", "_said", "stands_alone"),
        *("_standing_alone", "_read_alone", "six", "compact", "READ_TOO", "EVIDENCE"),
        # tests
        *("Kitchen", "Reached", "handmade", "handmade_rows", "killing", "machines", "taken_apart"),
    }
)
BANNED_PHRASES = (
    *("anew", "hears", "heard of", "hearers", "tells", "told", "believes?", "speaks?", r"whose work\b", "was come to"),
    *("come to its end", "has it that", "as Prefect has it", "stands? alone", "stands? on (a|one) ground", "let down"),
    *("without a word", "went away", "held against", "by a kill", "for who ", "of one's own", "nobody is", "weighed"),
    r"(one|row|line|file|key|scale|entry|process|test|program|cell|call) an? (row|cell|value|sample|line|operator)\b",
    r"(one|row|line|file|key|scale|entry|process|test|program|cell|call) an? (tensor|model|stage|series|option|SoC)\b",
    r"(one|row|line|file|key|scale|entry|process|test|program|cell|call) an? (run|device|column|table|launch|night)\b",
)  # fmt: skip


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in names.splitlines() if (path := ROOT / name).exists()]


def defined_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name that a module defines: classes, functions, parameters, variables and imports' aliases."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.alias(asname=str()):
                yield node.lineno, node.asname


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a Markdown file, or the docstrings and comments of a module."""
    text = path.read_text()
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            fenced ^= line.startswith("```")
            if not fenced:
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for offset, line in enumerate(node.value.value.splitlines()):
                yield node.lineno + offset, re.sub(r"`[^`]*`", "", line)


def banned_names_in(source: str) -> list[tuple[int, str]]:
    return sorted((line, name) for line, name in defined_names(source) if name in BANNED_NAMES)


def banned_phrases_in(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    banned = re.compile(rf"\b({'|'.join(BANNED_PHRASES)})", re.IGNORECASE)
    return [(number, matched[0]) for number, line in lines for matched in banned.finditer(line)]


def python_files() -> list[Path]:
    return [path for path in tracked("*.py") if path != Path(__file__)]


def remaining() -> dict[str, list[str]]:
    """Return the banned words that each file still contains, in their order."""
    words = {
        str(path.relative_to(ROOT)): [
            *(name for _, name in (banned_names_in(path.read_text()) if path.suffix == ".py" else [])),
            *(phrase for _, phrase in banned_phrases_in(prose(path))),
        ]
        for path in [*python_files(), *tracked("*.md")]
    }
    return {path: used for path, used in words.items() if used}


def test_no_banned_word_is_used_in_another_place() -> None:
    assert remaining() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    "source", ["def f(anew): ...", "class Means: ...", "for each in (): ...", "kept = 1", "import x as told"]
)
def test_a_planted_name_is_found(source: str) -> None:
    assert len(banned_names_in(source)) == 1


@pytest.mark.parametrize("line", ["A result that is made anew.", "Keys: a line a series.", "Who hears of it."])
def test_a_planted_phrase_is_found(line: str) -> None:
    assert len(banned_phrases_in(iter([(1, line)]))) == 1


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(remaining(), indent=1) + "\n")
