"""The translation of errors of Hydra, OmegaConf and YAML into a RequestError with a message of one line."""

import re
from collections.abc import Iterator, Sequence

from omegaconf import DictConfig, errors
from yaml import MarkedYAMLError

from qnnsweep.conf.describe import accepted, no_such_entry, no_such_key
from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.names import MASKED_NAMES
from qnnsweep.conf.options import GROUPS
from qnnsweep.conf.syntax import key_of

_UNEXPLAINED = errors.InterpolationResolutionError | errors.GrammarParseError | errors.KeyValidationError
"""Errors about a key. OmegaConf's own message is the best explanation of these errors."""


def to_request_error(error: BaseException, *, overrides: Sequence[str] = ()) -> RequestError:
    """Return a RequestError that explains `error`, or the cause of `error`, to the user.

    `overrides`: the overrides that were composed. The message lists them unless it names the wrong file or override.
    """
    from qnnsweep.conf.masking import mask_secrets  # only here, because it imports Hydra, which takes a while

    chain = list(_chain(error))
    explained = next((explained for link in chain if (explained := _explain(link))), RequestError(_one_line(error)))
    files = [f"{matched[1]}.yaml" for link in chain if (matched := re.match(r"In '([^']+)'", str(link)))]
    overridden = {*map(key_of, overrides)} - set(GROUPS)
    is_named = explained.key is not None and explained.key.startswith(tuple(overridden))
    location = files[0] if files else "" if is_named else " ".join(mask_secrets(overrides, MASKED_NAMES))
    if not location:
        return explained
    problem = f"{explained.problem} (in {printable(location)})"
    return RequestError(problem, key=explained.key, value=explained.value)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain(error: BaseException) -> RequestError | None:
    """Return a RequestError for an error of a known kind. Return None for an error that only wraps another error."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        location = f"{printable(mark.name)}, line {mark.line + 1}" if mark else "configuration"
        return RequestError(f"{location}: not YAML: {_one_line(error.problem or error.context or 'unreadable')}")
    if isinstance(error, UnicodeError):
        return RequestError(f"not a text file in UTF-8: {_one_line(error)}")
    if isinstance(error, OSError):
        return RequestError(f"{printable(error.filename)}: {error.strerror}" if error.filename else _one_line(error))
    if isinstance(error, errors.OmegaConfBaseException) and (key := error.full_key or error.key):
        return _explain_key(str(key), error)
    return None


def _explain_key(key: str, error: errors.OmegaConfBaseException) -> RequestError:
    if isinstance(error, errors.ConfigAttributeError | errors.ConfigKeyError):
        mapping = error.parent_node
        if error.object_type is dict and isinstance(mapping, DictConfig) and len(mapping):
            return no_such_entry(key, str(error.key), [str(name) for name in mapping])
        return no_such_key(key, schema=error.object_type)
    if isinstance(error, errors.MissingMandatoryValue):
        return RequestError(f"not given; {accepted(key)}", key=printable(key))
    if isinstance(error, _UNEXPLAINED):
        return RequestError(_one_line(error), key=printable(key))
    # For an item of a list, OmegaConf's error has a shortened key, which the schema does not contain.
    problem = _one_line(error) if (words := accepted(key)) == "anything" else words
    return RequestError(problem, key=printable(key), value=printable(error.value))


def _one_line(text: object) -> str:
    lines = [line.strip() for line in re.sub(r"^In '[^']+': ", "", str(text)).splitlines() if line.strip()]
    if not lines:
        return "unreadable"
    return printable(" ".join(lines[:2]) if lines[0].endswith(":") else lines[0])
