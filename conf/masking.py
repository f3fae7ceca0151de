"""Secrets in overrides, such as +device.environment.TOKEN=…, are masked before anything stores the overrides."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString

from qnnsweep.conf.constraints import regular_expression
from qnnsweep.conf.errors import RequestError, printable

MASK = "***"
"""What replaces a secret."""
_USER_MAPPINGS = ("environment", "arguments")
"""The keys of the schema below which the user chooses the names. The schema has no key whose value is a secret."""
_INTERPOLATION = re.compile(r"\$\{[\w.:]+\}")


def mask_secrets(overrides: Sequence[str], masked_names: str) -> list[str]:
    """Return the overrides with `***` for every secret. The overrides must be valid.

    A value is a secret if the regular expression `masked_names` matches its name, or the name of a mapping or list
    that contains the value. An interpolation such as ${oc.env:TOKEN} is not a secret. Raises RequestError if
    `masked_names` is no regular expression.
    """
    if (problem := regular_expression(masked_names)) is not None:
        raise RequestError(problem, key="masked_names", value=printable(masked_names))
    return [_masked(override, re.compile(masked_names, re.IGNORECASE)) for override in overrides]


def names_secret(key: str, masked_names: str) -> bool:
    """Return whether an override of this key, even one that cannot be parsed, sets a secret."""
    return _is_secret(key.lstrip("+~").split("."), re.compile(masked_names, re.IGNORECASE))


def refuse_secrets(overrides: Sequence[str], masked_names: str) -> None:
    """Raise RequestError for an override with a secret, because a Prefect server would store and show it."""
    for override, masked in zip(overrides, mask_secrets(overrides, masked_names), strict=True):
        if masked != override:
            raise RequestError(
                "the Prefect server would store this secret; write ${oc.env:VARIABLE} and set the environment variable "
                "wherever the sweep runs",
                key=masked.partition("=")[0],
            )


def _masked(override: str, masked_names: re.Pattern[str]) -> str:
    if not any(name in override for name in _USER_MAPPINGS):
        return override  # without parsing it again, which takes seconds for a long list
    (parsed,) = OverridesParser.create().parse_overrides([override])
    key, equals, text = override.partition("=")
    names = parsed.key_or_group.split(".")
    secrets = list(_secrets(names, parsed.value(), masked_names))
    # A number may be written in several ways, and a text with escapes.
    if secrets and (_is_secret(names, masked_names) or not all(secret and secret in text for secret in secrets)):
        return f"{key}{equals}{MASK}"
    for secret in sorted(map(str, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return f"{key}{equals}{text}"


def _secrets(names: Sequence[str], value: Any, masked_names: re.Pattern[str]) -> Iterator[str | None]:
    """Yield every secret in the value, None for one that is not a text. `names`: the names that lead to the value."""
    if isinstance(value, ChoiceSweep):
        value = value.list
    if isinstance(value, QuotedString):
        value = value.text
    if isinstance(value, dict):
        for name, item in cast("dict[Any, Any]", value).items():
            name = name.text if isinstance(name, QuotedString) else str(name)
            yield from _secrets([*names, *name.split(".")], item, masked_names)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _secrets(names, item, masked_names)
    elif value not in (None, "") and _is_secret(names, masked_names):
        if not isinstance(value, str):
            yield None
        elif not _INTERPOLATION.fullmatch(value):
            yield value


def _is_secret(names: Sequence[str], masked_names: re.Pattern[str]) -> bool:
    chosen = [index for index, name in enumerate(names) if name in _USER_MAPPINGS]
    return bool(chosen) and any(masked_names.search(name) for name in names[chosen[0] + 1 :])
