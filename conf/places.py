"""The places of samples, which are the values of the keys `samples` and `calibration` of a request."""

SAMPLES_KEYS = ("samples", "calibration")
"""The keys of a request whose values are places."""
PHOTOGRAPHS = "photographs"
"""The place that is no file and no function: the photographs that ship."""


def is_function(place: str) -> bool:
    """Return whether a place is a function, `FILE.py:function` or `package.module:function`, and no path of a file."""
    module, colon, function = place.rpartition(":")
    return bool(colon) and function.isidentifier() and (module.endswith(".py") or "/" not in module)
