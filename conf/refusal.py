"""What Hydra, OmegaConf and YAML say of a wrong request, said in one line of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    InterpolationResolutionError,
    KeyValidationError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import MarkedYAMLError

from conf.describe import accepted, no_such_key
from conf.errors import RequestError, printable
from conf.options import GROUPS


def refusal(error: BaseException, *, asked: Sequence[str] = ()) -> RequestError:
    """The RequestError that says what `error`, or what it came from, means for the person who wrote the request.

    `asked` are the overrides that were composed: they are named when nothing nearer to the mistake is known.
    """
    chain = list(_chain(error))
    line, key = next(((said, _key(link)) for link in chain if (said := _said(link))), (_one_line(str(error)), None))
    files = [f"{found[1]}.yaml" for link in chain if (found := re.match(r"In '([^']+)'", str(link)))]
    # An override that is itself the mistake needs no place: the line names it.
    overridden = {override.lstrip("+~").partition("=")[0] for override in asked} - set(GROUPS)
    own = key is not None and key.startswith(tuple(overridden))
    place = files[0] if files else "" if own else " ".join(asked)
    return RequestError(f"{line} (in {printable(place)})" if place else line)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _said(error: BaseException) -> str | None:
    """What an error of a kind we know says; None for one that only wraps another."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{printable(mark.name)}, line {mark.line + 1}" if mark else "configuration"
        return f"{place}: not YAML: {_one_line(error.problem or error.context or 'unreadable')}"
    if isinstance(error, UnicodeError):
        return f"not a text file in UTF-8: {_one_line(str(error))}"
    if isinstance(error, OSError):
        return f"{printable(error.filename)}: {error.strerror}" if error.filename else _one_line(str(error))
    if isinstance(error, OmegaConfBaseException) and (key := _key(error)):
        return _of_key(key, error)
    return None


def _key(error: BaseException) -> str | None:
    """Return the configuration key that OmegaConf's error is about."""
    key = (error.full_key or error.key) if isinstance(error, OmegaConfBaseException) else None
    return str(key) if key else None


def _of_key(key: str, error: OmegaConfBaseException) -> str:
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return no_such_key(key, of=error.object_type)
    if isinstance(error, MissingMandatoryValue):
        return f"{printable(key)}: not given; {accepted(key)}"
    if isinstance(error, InterpolationResolutionError | GrammarParseError | KeyValidationError):
        return f"{printable(key)}: {_one_line(str(error))}"
    if (words := accepted(key)) == "anything":  # OmegaConf shortens the key of what lies in a list
        return f"{printable(key)}={printable(error.value)}: {_one_line(str(error))}"
    return f"{printable(key)}={printable(error.value)}: {words}"


def _one_line(text: str) -> str:
    lines = [line.strip() for line in re.sub(r"^In '[^']+': ", "", text).splitlines() if line.strip()]
    if not lines:
        return "unreadable"
    return printable(" ".join(lines[:2]) if lines[0].endswith(":") else lines[0])
