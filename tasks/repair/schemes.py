"""A scheme with other settings for some nodes of the exported program."""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from qnnsweep.conf.overrides import patterns, settings
from qnnsweep.conf.schemes import SchemeConfig, SchemeOverride

Settings = Mapping[str, Any]
"""New values of the settings of a `SchemeOverride`. None means that the setting is as in the scheme."""


class Conflict(Exception):
    """Another override of the scheme, whose pattern selects more than one node, has this setting already."""


def with_settings(scheme: SchemeConfig, by_node: Mapping[str, Settings]) -> SchemeConfig:
    """Return the scheme with new settings of some nodes, by the nodes' names. Raises Conflict."""
    overrides = [replace(override) for override in scheme.overrides]
    for node, values in by_node.items():
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
    return replace(scheme, overrides=[override for override in overrides if settings(override)])


def setting(scheme: SchemeConfig, node: str, name: str) -> Any:
    """Return the value that an override of this single node has for a setting; None if there is no such override."""
    values = (getattr(override, name) for override in scheme.overrides if selects_only(override, node))
    return next((value for value in values if value is not None), None)


def selects_only(override: SchemeOverride, node: str) -> bool:
    """Return whether the override selects this node, and no other."""
    return patterns(override) == {"node": node}


def _may_select(override: SchemeOverride, node: str) -> bool:
    """Return whether the override may select the node. Its module and its operator type are not compared."""
    return override.node is None or fnmatchcase(node, override.node)
