"""A scheme as a YAML file that `scheme=` takes."""

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from enum import Enum
from typing import Any

import yaml

from qnnsweep.conf.schemes import SchemeConfig


def scheme_yaml(scheme: SchemeConfig, comments: Sequence[str] = ()) -> str:
    """Return the scheme as a YAML file of the group `scheme`. Keys with their default value are left out."""
    values: dict[str, Any] = {}
    for field in fields(SchemeConfig):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(scheme, field.name)
        if field.name == "precision" or value != default:
            values[field.name] = _plain(value)
    if "overrides" in values:
        values["overrides"] = [
            {name: _plain(value) for name, value in asdict(override).items() if value is not None}
            for override in scheme.overrides
        ]
    head = "".join(f"# {line}\n" for line in comments)
    return head + yaml.safe_dump(values, sort_keys=False, width=120, allow_unicode=True)


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value
