"""A scheme with other settings for some nodes of the exported program, or for inputs of the model."""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from qnnsweep.conf.overrides import patterns, settings
from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride

Settings = Mapping[str, Any]
"""New values of the settings of a `SchemeOverride`. None means that the setting is as in the scheme."""


class Conflict(Exception):
    """Another override of the scheme, whose pattern selects more than this, has this setting already."""


class Selector(NamedTuple):
    """What selects one node of the exported program or one of its operators, or one input of the model, alone."""

    name: str
    kind: Literal["node", "input"] = "node"
    operator: str | None = None
    """The type of the operator, if the node becomes several that can be told apart."""
    method: str | None = None
    """The method that has it; None if every method of the model has it, and for a model with one method."""

    @property
    def patterns(self) -> dict[str, str]:
        """The patterns of an override with this selector."""
        others = {"operator": self.operator, "method": self.method}
        return {self.kind: self.name} | {kind: name for kind, name in others.items() if name is not None}


def with_settings(scheme: SchemeConfig, by_selector: Mapping[Selector, Settings]) -> SchemeConfig:
    """Return the scheme with new settings of what is selected. Raises Conflict."""
    overrides = [replace(override) for override in scheme.overrides]
    for selector, values in by_selector.items():
        mine = next((override for override in overrides if selects_only(override, selector)), None)
        for override in overrides:
            sets = any(getattr(override, name) is not None for name in values)
            if override is not mine and sets and _may_select(override, selector):
                raise Conflict(selector.name)
        if mine is None:
            overrides.append(SchemeOverride(**selector.patterns, **values))
        else:
            for name, value in values.items():
                setattr(mine, name, value)
    return replace(scheme, overrides=[override for override in overrides if settings(override)])


def setting(scheme: SchemeConfig, selector: Selector, name: str) -> Any:
    """Return the value that an override with this selector has for a setting; None if there is no such override."""
    values = (getattr(override, name) for override in scheme.overrides if selects_only(override, selector))
    return next((value for value in values if value is not None), None)


def selects_only(override: SchemeOverride, selector: Selector) -> bool:
    """Return whether the override has this selector alone."""
    return patterns(override) == selector.patterns


def _may_select(override: SchemeOverride, selector: Selector) -> bool:
    """Return whether the override may select the same. Its module is not compared."""
    if (override.input is not None) is not (selector.kind == "input"):
        return False
    for pattern, name in ((override.operator, selector.operator), (override.method, selector.method)):
        if pattern is not None and name is not None and not fnmatchcase(name, pattern):
            return False
    pattern = getattr(override, selector.kind)
    return pattern is None or fnmatchcase(selector.name, pattern)
