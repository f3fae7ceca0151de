"""What Hydra, OmegaConf and YAML say of a wrong request, said in one line of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator

from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import MarkedYAMLError

from conf.describe import accepted, no_such_key, shown
from tasks.errors import RequestError


def refusal(error: BaseException) -> RequestError:
    """The RequestError that says what `error`, or what it came from, means for the person who wrote the request."""
    chain = list(_chain(error))
    where = next((found[1] for link in chain if (found := re.match(r"In '([^']+)'", str(link)))), None)
    line = next((said for link in reversed(chain) if (said := _said(link))), _one_line(str(error)))
    return RequestError(f"{line} (in {shown(where)})" if where and shown(where) not in line else line)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> str | None:
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{shown(mark.name)}, line {mark.line + 1}" if mark else "configuration"
        return f"{place}: not YAML: {_one_line(error.problem or error.context or 'unreadable')}"
    if isinstance(error, UnicodeError):
        return f"not a text file in UTF-8: {_one_line(str(error))}"
    if isinstance(error, OSError):
        return f"{shown(error.filename)}: {error.strerror}" if error.filename else _one_line(str(error))
    return _configuration(error) if isinstance(error, OmegaConfBaseException) else None


def _configuration(error: OmegaConfBaseException) -> str:
    key = str(error.full_key or error.key or "")
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return no_such_key(key)
    if isinstance(error, MissingMandatoryValue):
        return f"{shown(key)}: not given; {accepted(key)}"
    if isinstance(error, InterpolationResolutionError) or not key:
        return f"{shown(key)}: {_one_line(str(error))}" if key else _one_line(str(error))
    return f"{shown(key)}={shown(error.value)}: {accepted(key)}"


def _one_line(text: str) -> str:
    return shown(next((line.strip() for line in text.splitlines() if line.strip()), "unreadable"))
