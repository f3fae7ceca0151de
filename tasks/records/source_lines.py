"""The lines of the user's code from which nodes come, by the stack traces that torch.export records."""

import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)[^\n]*(?:\n(?![ \t]*File ")[ \t]*([^\n]*))?')
_LINE_OF_FILE = re.compile(r'^[ \t]*File "', re.MULTILINE)
_PACKAGES = "site-packages"
_GENERATED = "<eval_with_key>"  # the beginning of the names of files of code that PyTorch made of a graph
_TRACER = ("torch", "_dynamo")  # the folder of PyTorch's own tracer, whose frames are no code of a model
_TOOLCHAIN = Path(__file__).parents[1] / "toolchain"
_LONGEST_CODE = 80  # in characters


def portable(stack_trace: str) -> str:
    """Return a trace that says nothing about the machine: it begins at the user's code, with relative files.

    A file is relative to its project, the nearest folder with `.git` or `pyproject.toml`; without one, to the folder
    from which its package is imported, or it is only a name. If the whole trace is in installed packages, it is kept.
    """
    starts = [match.start() for match in _LINE_OF_FILE.finditer(stack_trace)]
    parts = [stack_trace[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)]
    files = [PurePath(_FRAME.findall(part)[0][0]) if _FRAME.search(part) else PurePath() for part in parts]
    own = [not _is_ours(file) for file in files]
    of_user = [number for number, file in enumerate(files) if own[number] and _PACKAGES not in file.parts]
    kept = range(of_user[0], len(parts)) if of_user else range(len(parts))
    return "".join(
        parts[number].replace(f'"{files[number]}"', f'"{_relative(files[number])}"', 1)
        for number in kept
        if own[number]
    )


@cache
def _relative(file: PurePath) -> PurePath:
    if _PACKAGES in file.parts:
        return PurePath(*file.parts[file.parts.index(_PACKAGES) :])
    if not file.is_absolute():
        return file
    for folder in Path(file).parents:
        if (folder / ".git").exists() or (folder / "pyproject.toml").exists():
            return file.relative_to(folder)
    imported = [entry for entry in sys.path if entry and file.is_relative_to(entry)]
    return file.relative_to(max(imported, key=len)) if imported else PurePath(file.name)


def _is_ours(file: PurePath) -> bool:
    """Return whether the file is generated code, or one of the toolchain's here that call the user's functions."""
    return str(file).startswith(_GENERATED) or file.is_relative_to(_TOOLCHAIN)


def users_line(stack_trace: str) -> tuple[str, int] | None:
    """Return the file and the line of the innermost call in a trace that is no installed package's.

    The file is relative to the working folder if it is in this folder.
    """
    of_user = [(file, line) for file, line, _ in _frames(stack_trace) if _PACKAGES not in file.parts]
    if not of_user:
        return None
    file, line = of_user[-1]
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file), line


def line_in_words(stack_trace: str) -> str | None:
    """Return the line of `users_line`, such as "`x += 1` (net.py:8)"; None if the trace is empty.

    If the whole trace is in installed packages, return the innermost line outside of PyTorch.
    """
    frames = [*_frames(stack_trace)]
    known = [frame for frame in frames if _PACKAGES not in frame[0].parts]
    known = known or [frame for frame in frames if "torch" not in frame[0].parts] or frames
    if not known:
        return None
    file, line, code = known[-1]
    return quoted_line(str(file), line, code)


def quoted_line(file: str, line: int, code: str) -> str:
    """Return a line of code with its place, such as "`x += 1` (net.py:8)"."""
    code = code.strip()
    shown = code if len(code) <= _LONGEST_CODE else f"{code[:_LONGEST_CODE]}…"
    place = f"{PurePath(file).name}:{line}"
    return f"`{shown}` ({place})" if shown else place


def _frames(stack_trace: str) -> Iterator[tuple[PurePath, int, str]]:
    """Yield the frames of a trace without generated code, PyTorch's tracer, and functions here that call the user's."""
    for name, line, code in _FRAME.findall(stack_trace):
        file = PurePath(name)
        if not _is_ours(file) and _TRACER not in pairwise(file.parts):
            yield file, int(line), code
