"""The overrides with which a past run can be compared again."""

from collections.abc import Sequence

from qnnsweep.conf.errors import RequestError

_CHANGEABLE = ("tolerance", "measure.replay", "measure.metrics", "measure.references", "limits")
"""The keys whose values may differ from those of the past run, because no capture depends on them."""


def check_changeable(overrides: Sequence[str]) -> None:
    """Raise RequestError for an override of a key on which captures depend."""
    for override in overrides:
        key = key_of(override)
        if not any(key == changeable or key.startswith(f"{changeable}.") for changeable in _CHANGEABLE):
            hint = "" if "=" in override else f"; to name a run, write --run={override}"
            raise RequestError(f"{override}: to compare a past run again, override only {', '.join(_CHANGEABLE)}{hint}")


def key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
