"""From words on a command line to a plan. The only module that knows Hydra.

The grammar is Hydra's own, sweeps included; an experiment names its axes under `hydra.sweeper.params`, as Hydra's
basic sweeper has it, and the same key on the command line wins.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ElementType, Glob, Override, Quote, QuotedString, Transformer
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from conf.describe import is_known, no_such_key
from conf.errors import RequestError, printable
from conf.names import AXES
from conf.options import GROUPS, SHIPPED, Options
from conf.plan import WHOLE_SWEEPS, Plan, plan
from conf.refusal import refusal
from conf.schema import DeviceConfig, Request

MOST_CELLS = 10_000
SHARED_BY = ("model", "scheme")
"""Cells that agree in these share their edge program: they belong into one process."""
SEARCH_PATH = "hydra.searchpath"

ConfigStore.instance().store(name="request", node=Request)


def load(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> Plan:
    """The plan the overrides ask for: the product of all sweeps, model outermost, then scheme, soc, backend, device.

    `config_dirs` are folders of the user's own, each with model/, scheme/ … like the shipped one; `group=file.yaml`
    takes a single file. Raises RequestError, in one line, for everything that is wrong with any of it.
    """
    with _read(overrides, config_dirs) as asked:
        values, options = asked.values, asked.options
        swept = [key for key, lines in values.items() if len(lines) > 1]
        return plan(_requests(values, options), swept=swept, folders=options.own_folders)


def shards(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> list[list[str]]:
    """The same request in parts, one a model and a scheme: each is overrides that can be asked for on their own.

    Together they are the cells of `load`, each in one part, in its order. Files and folders are named absolutely.
    """
    with _read(overrides, config_dirs) as asked:
        values = asked.values
        cut = [key for key in _in_order(values) if key.partition(".")[0] in SHARED_BY and values[key]]
        folders = ",".join(_quoted(str(folder.absolute())) for folder in asked.searched)
        kept = [f"{SEARCH_PATH}=[{folders}]"] if folders else []
        kept += [_line(key, lines, asked.options) for key, lines in asked.own.items() if lines and key not in cut]
        parts = itertools.product(*([_line(key, [line], asked.options) for line in values[key]] for key in cut))
        return [[*kept, *part] for part in parts]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What overrides say. `own` are theirs alone, `values` have the experiment's axes too: a key to its lines."""

    own: dict[str, tuple[str, ...]]
    values: dict[str, tuple[str, ...]]
    options: Options
    searched: Sequence[Path]


@contextmanager
def _read(overrides: Sequence[str], config_dirs: Sequence[Path]) -> Generator[_Asked]:
    """Hydra composes only while the context lasts."""
    parsed = _parse(overrides)
    with tempfile.TemporaryDirectory(prefix="qnnsweep-conf-") as links:
        searched = _search_path(parsed)
        options = Options.of([*config_dirs, *searched], links=Path(links))
        own = _assignments((override for override in parsed if override.key_or_group != SEARCH_PATH), options)
        with initialize_config_dir(str(SHIPPED), job_name="qnnsweep", version_base="1.3"):
            values = _experiment(own.get("experiment", ()), options) | own
            if values.get("device") and values.get("farm"):
                raise RequestError("device=, farm=: a cell goes to one or to the other; name one of them")
            yield _Asked(own=own, values=values, options=options, searched=searched)


def _line(key: str, lines: Sequence[str], options: Options) -> str:
    """One override of one key for all of `lines`; a single file by its own path."""
    if key in GROUPS:
        chosen = [str(override.value()) for override in _parse(lines)]
        return f"{key}={','.join(_plain(options.anywhere(key, name)) for name in chosen)}"
    first, *others = lines
    return ",".join([first, *(line.partition("=")[2] for line in others)])


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        noise = ("Error parsing override", "LexerNoViableAltException", "See ")
        lines = (line.strip(" ^") for line in str(error.message).splitlines())
        problem = next((line for line in lines if line and not line.startswith(noise)), "a character out of place")
        raise RequestError(f"{printable(error.override)}: not of the form key=value: {printable(problem)}") from None


def _search_path(overrides: Iterable[Override]) -> list[Path]:
    found: list[Path] = []
    for override in overrides:
        if override.key_or_group == SEARCH_PATH:
            folders = override.value()
            if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
                raise RequestError(f"{printable(override.input_line)}: a list of folders: {SEARCH_PATH}=[/my/conf]")
            found += [Path(str(folder).removeprefix("file://")) for folder in folders]
    return found


def _assignments(overrides: Iterable[Override], options: Options) -> dict[str, tuple[str, ...]]:
    """A key to the overrides, one a value, that give it its values: several for an axis of the sweep."""
    found: dict[str, tuple[str, ...]] = {}
    for override in overrides:
        key, line = override.key_or_group, printable(override.input_line)
        if key in found:
            raise RequestError(f"{line}: {printable(key)} is given twice; to sweep write {printable(key)}=a,b")
        if key.startswith(("hydra.", "hydra/")):
            raise RequestError(f"{line}: of Hydra's own keys {SEARCH_PATH} alone is understood here")
        if not key:
            raise RequestError(f"{line}: not of the form key=value: no key")
        if key not in GROUPS and not is_known(key):
            raise RequestError(no_such_key(key))
        found[key] = _choices(override, options) if key in GROUPS else _values(override)
        if not found[key] and key != "experiment":
            raise RequestError(f"{line}: no value in it")
        if len(found[key]) > 1 and key.partition(".")[0] in (*WHOLE_SWEEPS, "experiment"):
            raise RequestError(f"{line}: one sweep has one {printable(key)}")
    return found


def _choices(override: Override, options: Options) -> tuple[str, ...]:
    group, value = override.key_or_group, override.value()
    if override.is_delete() or override.package is not None:
        raise RequestError(f"{printable(override.input_line)}: write {group}=name")
    if isinstance(value, Glob):
        chosen = value.filter(sorted(options.files[group]))
    elif override.is_sweep_override():
        chosen = [element.text if isinstance(element, QuotedString) else element for element in _swept(override)]
    elif group == "experiment" and value is None:
        chosen = []
    else:
        chosen = [value]
    return tuple(f"{group}={_quoted(options.name(group, choice))}" for choice in chosen)


def _values(override: Override) -> tuple[str, ...]:
    if not override.is_sweep_override():
        return (str(override.input_line),)
    return tuple(f"{override.get_key_element()}={Transformer.str(element)}" for element in _swept(override))


def _swept(override: Override) -> list[ElementType]:
    line = printable(override.input_line)
    if isinstance(override.value(), Glob):
        raise RequestError(f"{line}: glob chooses among the options of {', '.join(GROUPS)} only")
    try:
        elements = list(itertools.islice(override.sweep_iterator(), MOST_CELLS + 1))
    except (HydraException, ValueError) as error:
        raise RequestError(f"{line}: no list of values can be made of it: {printable(error)}") from None
    if len(elements) > MOST_CELLS:
        raise RequestError(f"{line}: a sweep has at most {MOST_CELLS} cells")
    return elements


def _experiment(chosen: Sequence[str], options: Options) -> dict[str, tuple[str, ...]]:
    """The axes that the experiment names itself."""
    if not chosen:
        return {}
    composed = _compose(chosen, options, with_hydra=True)
    parameters = cast(dict[str, str], OmegaConf.select(composed, "hydra.sweeper.params") or {})
    return _assignments(_parse([f"{key}={value}" for key, value in parameters.items()]), options)


def _in_order(keys: Iterable[str]) -> list[str]:
    """The axes first, outermost first."""
    known = list(keys)
    return [*(axis for axis in AXES if axis in known), *(key for key in known if key not in AXES)]


def _requests(values: dict[str, tuple[str, ...]], options: Options) -> Iterator[Request]:
    """One request a cell, in the order of a plan."""
    if (count := math.prod(len(lines) for lines in values.values() if lines)) > MOST_CELLS:
        raise RequestError(f"{count} cells: a sweep has at most {MOST_CELLS}")
    pools: dict[tuple[str, ...], DeviceConfig] = {}
    alone = _standing_alone(values, options)
    read = dict(_read_alone(alone, values, options))
    known: dict[tuple[str, ...], Request] = {}
    for lines in itertools.product(*(values[key] for key in _in_order(values) if values[key])):
        request = _assembled(lines, alone, read, known, options)
        if request.pool:
            raise RequestError(no_such_key("pool"))
        request.pool = [_device(name, lines, request, options, pools) for name in request.farm.devices]
        yield request


def _standing_alone(values: dict[str, tuple[str, ...]], options: Options) -> dict[str, tuple[str, ...]]:
    """The lines of swept groups whose options speak of their own group alone, each to all lines of its group."""
    asked = [(key, line) for key, lines in values.items() for line in lines]
    if any("${" in line or (key in GROUPS and not options.is_plain(line)) for key, line in asked):
        return {}
    swept = (values[axis] for axis in AXES if len(values.get(axis, ())) > 1)
    return {line: lines for lines in swept if all(map(options.stands_alone, lines)) for line in lines}


def _assembled(
    lines: tuple[str, ...],
    alone: dict[str, tuple[str, ...]],
    read: dict[str, Any],
    known: dict[tuple[str, ...], Request],
    options: Options,
) -> Request:
    """The request of these lines. Groups that stand alone are composed together, one option of each at a time."""

    def composed(number: int) -> Request:
        """With the option of that number, or else the first, of every group that stands alone."""
        asked = tuple(_numbered(alone[line], number) if line in alone else line for line in lines)
        if asked not in known:
            known[asked] = _request(_compose(asked, options), asked)
        return known[asked]

    groups: dict[str, Any] = {}
    for line in lines:
        if line in alone and (number := alone[line].index(line)):
            axis = line.partition("=")[0]
            groups[axis] = read[line] if line in read else getattr(composed(number), axis)
    return replace(composed(0), **groups)


def _read_alone(
    alone: Collection[str], values: Mapping[str, tuple[str, ...]], options: Options
) -> Iterator[tuple[str, Any]]:
    """Of groups that stand alone, where nothing else in the request speaks of them, what Hydra makes of an option.

    In a tenth of the time. One with a mistake in it is left to Hydra, which says what is wrong.
    """
    chosen = (line for key, lines in values.items() if key in GROUPS for line in lines)
    if not all(line in alone or options.stands_alone(line) for line in chosen):
        return
    spoken_of = {key.partition(".")[0] for key in values if key not in GROUPS}
    for line in alone:
        (override,) = _parse([line])
        group = override.key_or_group
        if group not in spoken_of:
            with suppress(OmegaConfBaseException, YAMLError, OSError, ValueError):
                schema = OmegaConf.structured(get_type_hints(Request)[group])
                file = OmegaConf.load(options.files[group][str(override.value())])
                yield line, OmegaConf.to_object(OmegaConf.merge(schema, file))


def _numbered(lines: tuple[str, ...], number: int) -> str:
    return lines[number] if number < len(lines) else lines[0]


def _request(composed: DictConfig, lines: Sequence[str]) -> Request:
    try:
        return cast(Request, OmegaConf.to_object(composed))
    except OmegaConfBaseException as error:
        raise refusal(error, asked=lines) from None


def _device(
    name: str, lines: Sequence[str], request: Request, options: Options, known: dict[tuple[str, ...], DeviceConfig]
) -> DeviceConfig:
    """The farm's device of that name, with what the request sets of `device`."""
    try:
        chosen = f"device={_quoted(options.name('device', name))}"
    except RequestError as error:
        raise RequestError(f"farm {printable(request.farm.name)}: {error}") from None
    asked = (chosen, *(line for line in lines if line.lstrip("+~").startswith("device.")))
    if asked not in known:
        known[asked] = _request(_compose(asked, options), asked).device
    return known[asked]


def _compose(lines: Sequence[str], options: Options, *, with_hydra: bool = False) -> DictConfig:
    folders = ",".join(_quoted(str(folder)) for folder in options.folders)
    search = [f"{SEARCH_PATH}=[{folders}]"] if folders else []
    try:
        return compose("config", [*lines, *search], return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise refusal(error, asked=lines) from None


def _plain(text: str) -> str:
    """As a person would type it, where Hydra reads that as this very text."""
    return text if re.fullmatch(r"[\w./-]+", text) and _parse([f"x={text}"])[0].value() == text else _quoted(text)


def _quoted(text: str) -> str:
    return QuotedString(text=text, quote=Quote.single).with_quotes()
