"""Composition of a sweep's requests by Hydra.

`compose_cells` has the same result as one call of `compose_request` per cell, but is much faster. An option is
self-contained if it neither reads nor sets a key of another group. Then the keys of its own group have the same values
in every cell with this option, so these keys are composed once instead of once per cell.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, cast, get_type_hints

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from qnnsweep.conf.hydra_errors import to_request_error
from qnnsweep.conf.names import AXES
from qnnsweep.conf.options import GROUPS, Options
from qnnsweep.conf.schema import Request

SEARCH_PATH = "hydra.searchpath"
Overrides = tuple[str, ...]
"""The overrides of one cell, one per key."""


def compose_cells(
    cells: Iterable[Overrides], values: Mapping[str, Sequence[str]], options: Options
) -> Iterator[Request]:
    """Compose the requests of the cells. Every self-contained option is composed only once.

    `values`: maps each key to its overrides; a cell has one override per key. Options of several self-contained axes
    are composed together: one composition has the second option of every such axis, the next one the third option.
    """
    axis_of = _self_contained(values, options)
    loaded = dict(_load_directly(axis_of, values, options))

    @cache
    def composed(overrides: Overrides) -> Request:
        return compose_request(overrides, options)

    def compose_variant(cell: Overrides, index: int) -> Request:
        """Compose the cell, but set every self-contained axis to its option at `index`.

        An axis with fewer options is set to its first option.
        """
        axes = (axis_of.get(override, (override,)) for override in cell)
        return composed(tuple(axis[index] if index < len(axis) else axis[0] for axis in axes))

    for cell in cells:
        groups: dict[str, Any] = {}
        for override in cell:
            if index := axis_of.get(override, (override,)).index(override):
                group = override.partition("=")[0]
                is_loaded = override in loaded
                groups[group] = loaded[override] if is_loaded else getattr(compose_variant(cell, index), group)
        yield replace(compose_variant(cell, 0), **groups)


def _self_contained(values: Mapping[str, Sequence[str]], options: Options) -> dict[str, Sequence[str]]:
    """Map each override of a self-contained axis to all overrides of this axis.

    An axis is self-contained if it is swept and all its options are self-contained. The result is empty if any override
    or option contains an interpolation, because an interpolation may read any group.
    """
    for key, overrides in values.items():
        for override in overrides:
            if "${" in override or (key in GROUPS and options.has_interpolation(override)):
                return {}
    swept = (values[axis] for axis in AXES if len(values.get(axis, ())) > 1)
    return {override: axis for axis in swept if all(map(options.is_self_contained, axis)) for override in axis}


def _load_directly(
    axis_of: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]], options: Options
) -> Iterator[tuple[str, Any]]:
    """Load options ten times faster than Hydra does. Yield pairs of an override and the option that it selects.

    An option is loaded only if Hydra would compose the same result: all options of the sweep must be self-contained,
    and neither an override nor the experiment may set a key of the option's group. An option with a mistake is not
    yielded, because the error that Hydra raises for this option explains the mistake.
    """
    groups = [group for group in GROUPS if group != "experiment"]
    chosen = (override for key, overrides in values.items() if key in groups for override in overrides)
    experiments = [options.experiment(override) for override in values.get("experiment", ())]
    if not all(map(options.is_self_contained, chosen)) or None in experiments:
        return
    overridden = {key.partition(".")[0] for key in values if key not in GROUPS}
    overridden |= {key for experiment in experiments if experiment for key in experiment.keys}
    for override in axis_of:
        group = override.partition("=")[0]
        if group not in overridden and (file := options.file(override)):
            with suppress(OmegaConfBaseException, YAMLError, OSError, ValueError):
                schema = OmegaConf.structured(get_type_hints(Request)[group])
                yield override, OmegaConf.to_object(OmegaConf.merge(schema, OmegaConf.load(file)))


def compose_request(overrides: Sequence[str], options: Options) -> Request:
    """Return the request of these overrides. Raises RequestError for a mistake in an override or in an option."""
    composed = compose(overrides, options)
    try:
        return cast(Request, OmegaConf.to_object(composed))
    except OmegaConfBaseException as error:
        raise to_request_error(error, overrides=overrides) from None


def compose(overrides: Sequence[str], options: Options, *, with_hydra: bool = False) -> DictConfig:
    """Compose the overrides. `with_hydra`: keep the keys below `hydra`. Raises RequestError if Hydra fails."""
    folders = ",".join(quoted(str(folder)) for folder in options.search_path)
    search_path = [f"{SEARCH_PATH}=[{folders}]"] if folders else []
    try:
        return hydra.compose("config", [*overrides, *search_path], return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise to_request_error(error, overrides=overrides) from None


def quoted(text: str) -> str:
    """Return `text` in single quotes, escaped according to Hydra's grammar."""
    return QuotedString(text=text, quote=Quote.single).with_quotes()


def value_of(override: str) -> str:
    """Return the text that Hydra parses as the value of an override."""
    return str(OverridesParser.create().parse_override(override).value())


def quoted_if_needed(text: str) -> str:
    """Return `text` unchanged if Hydra parses it as this text without quotes. Otherwise return it in quotes."""
    is_plain = re.fullmatch(r"[\w./:-]+", text, re.ASCII) and value_of(f"x={text}") == text
    return text if is_plain else quoted(text)
