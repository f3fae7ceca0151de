"""Writes the table of packages in docs/licences.md, from the metadata of the packages that are installed.

usage: python docs/licences.py        in the environment of the tests, after a change of requirements/
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, BEGIN = Path(__file__).with_name("licences.md"), "<!-- The rest is written by docs/licences.py -->\n"
FILES = {
    "torch-cpu": "at run time",
    "run": "at run time",
    "dev": "for the tests and the models of the zoo",
    "build": "to build",
    "aihub": "for the tests, in an environment of its own",
}
_ELSEWHERE = {"aihub": sorted(map(str, (ROOT / ".venv" / "aihub").glob("lib/python*/site-packages")))}
"""The folders of packages that are not in this environment, by the file of requirements."""
_OF_TEXTS = {"BSD 3-Clause License": "BSD-3-Clause", "MIT License": "MIT", "Copyright 2023 Meta": "BSD-3-Clause"}
"""The beginnings of texts of licences, for packages whose metadata name none."""


def pinned(name: str) -> list[str]:
    """Return the packages of a file of requirements, sorted."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text()
    return sorted(set(re.findall(r"^([\w.-]+)==", lines, flags=re.MULTILINE)), key=str.lower)


def licence(package: str, folders: Sequence[str]) -> str:
    """Return the licence that a package in one of the folders states; `not stated` if it states none."""
    (found,) = metadata.distributions(name=package, path=list(folders))
    stated = found.metadata.get("License-Expression")
    classified = [
        line.split(" :: ")[-1] for line in found.metadata.get_all("Classifier", []) if line.startswith("License ::")
    ]
    first = (found.metadata.get("License") or "").strip().split("\n")[0]
    if stated or classified or (first and first != "UNKNOWN"):
        return stated or ", ".join(classified) or first
    texts = (found.read_text(f"licenses/{name}") or "" for name in found.metadata.get_all("License-File", []))
    known = (name for text in texts for begin, name in _OF_TEXTS.items() if begin in text)
    return next(known, "not stated")


def lines() -> Iterator[str]:
    yield "| package | licence | needed |"
    yield "|---|---|---|"
    seen: set[str] = set()
    for name, needed in FILES.items():
        for package in pinned(name):
            if package not in seen:
                seen.add(package)
                yield f"| {package} | {licence(package, _ELSEWHERE.get(name, sys.path)).replace('|', '/')} | {needed} |"


def page() -> str:
    return PAGE.read_text().partition(BEGIN)[0] + BEGIN + "\n" + "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
