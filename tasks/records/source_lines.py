"""The lines of the user's code from which nodes come, by the stack traces that torch.export records."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePath

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)[^\n]*(?:\n(?![ \t]*File ")[ \t]*([^\n]*))?')
_PACKAGES = "site-packages"
_TOOLCHAIN = Path(__file__).parents[1] / "toolchain"
_LONGEST_CODE = 80  # in characters


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
    """Yield the frames of a trace, without those of the functions here that call the user's."""
    for file, line, code in _FRAME.findall(stack_trace):
        if not PurePath(file).is_relative_to(_TOOLCHAIN):
            yield PurePath(file), int(line), code
