"""The conversion of the overrides of a command line into a plan.

Overrides are in Hydra's grammar, including sweeps. An experiment lists the keys to sweep, with their values, under
`hydra.sweeper.params`, as for Hydra's sweepers. If the command line overrides such a key, the override of the command
line takes precedence. With `hydra/sweeper=optuna`, a search chooses the values, see `sweeper`.
"""

import itertools
import json
import math
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ElementType, Glob, Override, QuotedString, Transformer
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from qnnsweep.conf.check import unknown_schemes
from qnnsweep.conf.compose import (
    SEARCH_PATH,
    Overrides,
    compose,
    compose_cells,
    compose_request,
    quoted,
    quoted_if_needed,
)
from qnnsweep.conf.constraints import violations
from qnnsweep.conf.describe import is_known, no_such_key
from qnnsweep.conf.devices import DeviceConfig
from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.limits import check_override
from qnnsweep.conf.masking import MASK, mask_secrets, names_secret
from qnnsweep.conf.names import AXES, MASKED_NAMES
from qnnsweep.conf.options import GROUPS, SHIPPED, Options
from qnnsweep.conf.places import SAMPLES_KEYS
from qnnsweep.conf.plan import SWEEP_KEYS, Plan, plan
from qnnsweep.conf.recompare import KEPT, KINDS, restored
from qnnsweep.conf.sampled import absolute, code_of, with_samples
from qnnsweep.conf.schema import Request
from qnnsweep.conf.sweeper import Dimension, Search, is_numeric, is_of_sweeper, numeric, register, search_of
from qnnsweep.conf.syntax import explain
from qnnsweep.conf.toolchains import ToolchainConfig
from qnnsweep.conf.words import joined, keys_of_experiment, program_words

MOST_CELLS = 10_000
SHARED_BY = ("model", "scheme")
"""The axes that separate shards. Cells with equal options on both share an edge program, and one process runs them."""

ConfigStore.instance().store(name="request", node=Request)


def load(overrides: Sequence[str], *, config_dirs: Sequence[Path] = (), of_trial: bool = False) -> Plan:
    """Return the plan of the overrides. Its cells are the product of all swept keys.

    In the order of the cells, model varies slowest, followed by scheme, soc, toolchain, backend and device.
    `config_dirs`: the user's folders, with subfolders model/, scheme/ … like the shipped folder. The override
    `group=file.yaml` selects a single file. `of_trial`: the overrides are those of one trial of a search. Raises
    RequestError, with a message of one line, for any mistake, and for a search.
    """
    with parse(overrides, config_dirs) as parsed:
        if parsed.search and not of_trial:
            raise RequestError("only `qnnsweep run` on this machine searches", key="hydra/sweeper", value="optuna")
        swept = [key for key, values in parsed.values.items() if len(values) > 1]
        requests = list(_requests(parsed))
        code = (code_of(place) for request in requests for place in (request.samples, request.calibration))
        folders = dict.fromkeys((*parsed.options.user_folders, *filter(None, code)))
        planned = plan(requests, swept=swept, folders=tuple(folders))
        _check_schemes_of_tolerances(planned, parsed.options)
        return planned


def load_again(run: Mapping[str, Any], overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> Plan:
    """Return the plan of the cells of a past run, changed by the overrides of this command line.

    `run`: what `qnnsweep.conf.recompare.recorded` returned. Code and folders are those of this command line. Raises
    RequestError.
    """
    with parse(overrides, config_dirs) as parsed:
        options = parsed.options
        base = plan(_requests(parsed), swept=[*parsed.values], folders=options.user_folders)
        now = base.cells[0].request

        def value_of(group: str, plain: dict[str, Any]) -> Any:
            words = [values[0] for key, values in parsed.values.items() if key.startswith(f"{group}.")]
            if group in parsed.values and group != "backend":
                return getattr(now, group)
            return _recorded_value(group, plain, _parse(words) if group != "backend" else ())

        @cache
        def toolchain_of(name: str) -> ToolchainConfig:
            if name not in options.files["toolchain"]:  # only a name: the path of a file would select any folder
                problem = "this machine has no toolchain of this name; prepare it with `qnnsweep toolchain add`"
                raise RequestError(problem, key="toolchain", value=printable(name))
            return compose_request((f"toolchain={quoted(name)}",), options).toolchain

        planned = replace(base, cells=restored(run, now, value_of, toolchain_of))
        _check_schemes_of_tolerances(planned, options)
        return planned


def _recorded_value(group: str, plain: dict[str, Any], overrides: Sequence[Override]) -> Any:
    """Return a value that a run recorded, changed by the overrides. Raises ValueError for anything but values."""
    if "${" in json.dumps(plain):
        raise ValueError(f"{group}: an interpolation")
    try:
        given = {"factory": "", **plain} if group == "model" else plain
        config = OmegaConf.create({group: OmegaConf.merge(OmegaConf.structured(KINDS[group]), given)})
        ConfigLoaderImpl._apply_overrides_to_config([*overrides], config)  # pyright: ignore[reportPrivateUsage]
        value: Any = cast(dict[str, Any], OmegaConf.to_object(config))[group]
    except (OmegaConfBaseException, HydraException) as error:
        raise ValueError(f"{group}: {error}") from error
    for problem in violations(value, group) if group not in KEPT else ():
        raise ValueError(str(problem))
    return value


def load_search(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> Search | None:
    """Return the search that the overrides request with `hydra/sweeper=optuna`, or None. Raises RequestError."""
    with parse(overrides, config_dirs) as parsed:
        if parsed.search is None:
            return None
        folders = ",".join(quoted(str(folder.absolute())) for folder in parsed.search_path)
        fixed, space = [f"{SEARCH_PATH}=[{folders}]"] if folders else [], list[Dimension]()
        for key, values in parsed.values.items():
            if key in parsed.numeric:
                space.append(numeric(parsed.numeric[key]))
            elif len(values) > 1:
                choices = tuple(joined(key, [value], parsed.options) for value in values)
                space.append(Dimension(key=key, choices=choices))
            elif key in parsed.command_line and values:
                fixed.append(joined(key, values, parsed.options))
        return search_of(parsed.search, space, fixed)


def shards(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> list[list[str]]:
    """Split a sweep into one part per model and scheme. Return the list of overrides of each part, for `load`.

    Together, the parts have each cell of the sweep once, in the sweep's order. All paths in the overrides are absolute.
    """
    with parse(overrides, config_dirs) as parsed:
        split = [key for key in _axes_first(parsed.values) if key.partition(".")[0] in SHARED_BY and parsed.values[key]]
        folders = ",".join(quoted(str(folder.absolute())) for folder in parsed.search_path)
        common = [f"{SEARCH_PATH}=[{folders}]"] if folders else []
        for key, values in parsed.command_line.items():
            if values and key not in split:
                common.append(joined(key, values, parsed.options))
        parts = ([joined(key, [value], parsed.options) for value in parsed.values[key]] for key in split)
        return [[*common, *part] for part in itertools.product(*parts)]


def single_values(override: str, *, config_dirs: Sequence[Path] = ()) -> list[str]:
    """Split an override into one override per value, in the order of the values. Raises RequestError."""
    with parse([override], config_dirs) as parsed:
        ((key, values),) = parsed.command_line.items()
        return [joined(key, [value], parsed.options) for value in values]


def _check_schemes_of_tolerances(planned: Plan, options: Options) -> None:
    """Raise RequestError for a limit of a scheme that does not exist: it would never be applied."""
    requests = [cell.request for cell in planned.cells]
    known = {*options.files["scheme"], *(request.scheme.name for request in requests)}
    if any(unknown_schemes(requests, known)):  # a scheme may have another name than its file
        for problem in unknown_schemes(requests, known | options.names_in_files("scheme")):
            raise problem


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedOverrides:
    """The overrides of each key, in Hydra's grammar: one override per value. A swept key has several values."""

    command_line: dict[str, Overrides]
    values: dict[str, Overrides]
    """The overrides of the command line, and those that the experiment sets under `hydra.sweeper.params`."""
    options: Options
    search_path: Sequence[Path]
    """The folders that the command line sets as Hydra's search path."""
    experiment_keys: Sequence[str] = ()
    """The keys that the experiment sweeps."""
    search: Mapping[str, Any] | None = None
    """The keys below `hydra.sweeper` of a search; None for a sweep."""
    numeric: Mapping[str, Override] = field(default_factory=dict[str, Override])
    """The overrides that sweep numbers, by key."""

    def cells(self) -> Iterator[Overrides]:
        """Return the overrides of each cell, in the plan's order. Raises RequestError if there are too many cells."""
        axes = [self.values[key] for key in _axes_first(self.values) if self.values[key]]
        if (count := math.prod(map(len, axes))) > MOST_CELLS:
            raise RequestError(f"{count} cells: a sweep has at most {MOST_CELLS}")
        return itertools.product(*axes)


@contextmanager
def parse(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> Generator[ParsedOverrides]:
    """Yield the parsed overrides. Hydra can compose them only in this context. Raises RequestError for a mistake."""
    for override in overrides:
        check_override(override)
    try:
        parsed = _parse(overrides)
    except RecursionError:
        raise RequestError("an override has too many brackets in each other") from None
    with tempfile.TemporaryDirectory(prefix="qnnsweep-conf-") as links:
        search_path = _search_path(parsed)
        options = Options.of([*config_dirs, *search_path], links=Path(links))
        of_sweeper = [override.input_line or "" for override in parsed if is_of_sweeper(override.key_or_group)]
        others = [o for o in parsed if o.key_or_group != SEARCH_PATH and not is_of_sweeper(o.key_or_group)]
        command_line = _values_by_key(others, options)
        try:
            with initialize_config_dir(str(SHIPPED), job_name="qnnsweep", version_base="1.3"):
                register()
                swept, search = _experiment(command_line.get("experiment", ()), of_sweeper, options)
                numbers = {o.key_or_group: o for o in (*swept, *others) if is_numeric(o)}
                values = _values_by_key(swept, options) | command_line
                for key, override in numbers.items():
                    if search is None and override.is_interval_sweep():
                        problem = (
                            "an interval has no list of values; write range(…), or search with hydra/sweeper=optuna"
                        )
                        raise RequestError(problem, key=printable(key))
                if values.get("device") and values.get("farm"):
                    raise RequestError("device=, farm=: a cell goes to a device or to a farm; set only one of the two")
                yield ParsedOverrides(
                    command_line=command_line,
                    values=values,
                    options=options,
                    search_path=search_path,
                    experiment_keys=[str(override.key_or_group) for override in swept],
                    search=search,
                    numeric=numbers,
                )
        except RecursionError:
            raise _too_deep(overrides) from None


def _too_deep(overrides: Sequence[str]) -> RequestError:
    words = printable(" ".join(mask_secrets(overrides, MASKED_NAMES)))
    return RequestError(f"the defaults of an option lead back to it, or values are nested too deeply (in {words})")


def _error(override: str | None, problem: str) -> RequestError:
    key, equals, value = printable(override).partition("=")
    if names_secret(key, MASKED_NAMES):
        value = MASK
    return RequestError(problem, key=key, value=value if equals else None)


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        override = str(error.override)
        is_secret = names_secret(override.partition("=")[0], MASKED_NAMES)
        problem = "put the value in quotes" if is_secret else explain(override, str(error.message))
        raise _error(override, f"cannot be parsed: {problem}") from None


def _search_path(overrides: Iterable[Override]) -> list[Path]:
    search_path: list[Path] = []
    for override in overrides:
        if override.key_or_group == SEARCH_PATH:
            folders = override.value()
            if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
                raise _error(override.input_line, f"a list of folders: {SEARCH_PATH}=[/my/conf]")
            search_path += [Path(str(folder).removeprefix("file://")) for folder in folders]
    return search_path


def _values_by_key(overrides: Iterable[Override], options: Options) -> dict[str, Overrides]:
    """Map each key to its overrides. A key has one override per value; a swept key has several values."""
    values: dict[str, Overrides] = {}
    for override in overrides:
        key, line = override.key_or_group, override.input_line
        if key in values:
            raise _error(line, f"{printable(key)} is given twice; to sweep write {printable(key)}=a,b")
        if key.startswith(("hydra.", "hydra/")):
            if key.startswith("hydra.sweeper.params"):
                raise _error(line, "only an experiment has this key; write for example scheme=8a8w,16a8w instead")
            accepted = f"{SEARCH_PATH}, hydra/sweeper and hydra.sweeper.…"
            raise _error(line, f"the only keys of Hydra that are accepted are {accepted}")
        if not key:
            raise _error(line, "not of the form key=value: no key")
        if key not in GROUPS and not is_known(key):
            raise no_such_key(key)
        values[key] = _options(override, options) if key in GROUPS else _values(override)
        if not values[key] and key != "experiment":
            raise _error(line, "it selects no value")
        if len(values[key]) > 1 and key.partition(".")[0] in (*SWEEP_KEYS, "experiment"):
            raise _error(line, f"a sweep has one value of {printable(key)}")
    return values


def _options(override: Override, options: Options) -> Overrides:
    group, value = override.key_or_group, override.value()
    if override.is_delete() or override.package is not None:
        raise _error(override.input_line, f"write {group}=name")
    if isinstance(value, Glob):
        names = value.filter(sorted(options.files[group]))
    elif override.is_sweep_override():
        names = [element.text if isinstance(element, QuotedString) else element for element in _elements(override)]
    elif group == "experiment" and value is None:
        names = []
    else:
        names = [value]
    return tuple(f"{group}={quoted(options.name(group, name))}" for name in names)


def _values(override: Override) -> Overrides:
    if override.is_interval_sweep():
        return (str(override.input_line),)
    if not override.is_sweep_override():
        place = override.value()
        if override.key_or_group in SAMPLES_KEYS and isinstance(place, str | int | float):
            written = place if isinstance(place, str) else str(override.input_line).partition("=")[2]  # such as 007
            return (f"{override.get_key_element()}={quoted_if_needed(absolute(written))}",)
        return (str(override.input_line),)
    return tuple(f"{override.get_key_element()}={Transformer.str(element)}" for element in _elements(override))


def _elements(override: Override) -> list[ElementType]:
    """Return the values that the override sweeps."""
    line = override.input_line
    if isinstance(override.value(), Glob):
        raise _error(line, f"glob is valid only for the options of {', '.join(GROUPS)}")
    try:
        elements = list(itertools.islice(override.sweep_iterator(), MOST_CELLS + 1))
    except (HydraException, ValueError) as error:
        raise _error(line, f"cannot be expanded to values: {printable(error)}") from None
    if len(elements) > MOST_CELLS:
        raise _error(line, f"a sweep has at most {MOST_CELLS} cells")
    return elements


def _experiment(
    selected: Sequence[str], of_sweeper: Sequence[str], options: Options
) -> tuple[list[Override], Mapping[str, Any] | None]:
    """Return the overrides below `hydra.sweeper.params`, and all keys below `hydra.sweeper` if they are of a search.

    `selected`: the override that selects the experiment, if there is one. `of_sweeper`: those of the sweeper itself.
    """
    if not selected and not of_sweeper:
        return [], None
    experiment = options.experiment(selected[0]) if selected and not of_sweeper else None
    if experiment is not None:
        return _parse([f"{key}={value}" for key, value in experiment.swept.items()]), None
    composed = compose([*selected, *of_sweeper], options, with_hydra=True)  # Hydra takes a while
    sweeper = cast(dict[str, Any], OmegaConf.to_container(composed.hydra.sweeper, resolve=True))
    parameters = cast(dict[str, str], sweeper.get("params") or {})
    search = sweeper if "n_trials" in sweeper else None
    return _parse([f"{key}={value}" for key, value in parameters.items()]), search


def _axes_first(keys: Iterable[str]) -> list[str]:
    """Sort the keys: first the axes, in the order of `AXES`, then the other keys, in their given order."""
    names = list(keys)
    return [*(axis for axis in AXES if axis in names), *(key for key in names if key not in AXES)]


def _requests(parsed: ParsedOverrides) -> Iterator[Request]:
    """Yield one composed request per cell, in the plan's order. The request's `pool` has the devices of the farm."""
    options, cells = parsed.options, list(parsed.cells())
    # No command but a run takes the experiment of a search.
    selected = parsed.values.get("experiment", ()) if parsed.search is None else ()
    of_experiment = keys_of_experiment(selected, parsed.experiment_keys, options)

    @cache
    def composed_device(*overrides: str) -> DeviceConfig:
        return compose_request(overrides, options).device

    for cell, request in zip(cells, compose_cells(cells, parsed.values, options), strict=True):
        if request.pool:
            raise no_such_key("pool")
        overridden = [override for override in cell if override.lstrip("+~").startswith("device.")]
        try:
            selected = [f"device={quoted(options.name('device', name))}" for name in request.farm.devices]
        except RequestError as error:
            raise RequestError(f"farm {printable(request.farm.name)}: {error}") from None
        request.pool = [composed_device(device, *overridden) for device in selected]
        words = program_words(cell, request, options, of_experiment)
        yield with_samples(replace(request, program_words=words))
