"""A scheme with other settings for some nodes of the exported program."""

from collections.abc import Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any

from conf.schemes import SchemeConfig, SchemeOverride

Settings = Mapping[str, Any]
"""New values of the settings of a `SchemeOverride`. None means that the setting is as in the scheme."""

SETTINGS = tuple(field.name for field in fields(SchemeOverride) if field.name not in ("module", "operator", "node"))


class Conflict(Exception):
    """Another override of the scheme, whose pattern selects more than one node, has this setting already."""


def with_settings(scheme: SchemeConfig, settings: Mapping[str, Settings]) -> SchemeConfig:
    """Return the scheme with new settings of some nodes, by the nodes' names. Raises Conflict."""
    overrides = [replace(override) for override in scheme.overrides]
    for node, values in settings.items():
        mine = next((override for override in overrides if selects_only(override, node)), None)
        for override in overrides:
            sets = any(getattr(override, name) is not None for name in values)
            if override is not mine and sets and _may_select(override, node):
                raise Conflict(node)
        if mine is None:
            overrides.append(SchemeOverride(node=node, **values))
        else:
            for name, value in values.items():
                setattr(mine, name, value)
    return replace(scheme, overrides=[override for override in overrides if _sets_anything(override)])


def setting(scheme: SchemeConfig, node: str, name: str) -> Any:
    """Return the value that an override of this single node has for a setting; None if there is no such override."""
    values = (getattr(override, name) for override in scheme.overrides if selects_only(override, node))
    return next((value for value in values if value is not None), None)


def selects_only(override: SchemeOverride, node: str) -> bool:
    """Return whether the override selects this node, and no other."""
    return override.node == node and override.module is None and override.operator is None


def _may_select(override: SchemeOverride, node: str) -> bool:
    """Return whether the override may select the node. Its module and its operator type are not compared."""
    return override.node is None or fnmatchcase(node, override.node)


def _sets_anything(override: SchemeOverride) -> bool:
    return any(getattr(override, name) is not None for name in SETTINGS)
