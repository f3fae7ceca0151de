"""The search of a request, `hydra/sweeper=optuna`: its space, its objectives and its sampler.

The keys are those of the plugin hydra-optuna-sweeper, which needs Optuna 2, and in addition `objective`: what a
function of a Hydra program returns is here a column of the table `cells`. Hydra's own sweeper is the default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import MISSING

from qnnsweep.conf.errors import RequestError, one_of, printable

DIRECTIONS = ("minimize", "maximize")
_GROUP = "hydra/sweeper"


@dataclass(kw_only=True)
class RandomConfig:
    """The keys below `hydra.sweeper.sampler`. All but `name` are arguments of Optuna's class."""

    name: str = "random"
    seed: int | None = None


@dataclass(kw_only=True)
class TpeConfig(RandomConfig):
    name: str = "tpe"
    n_startup_trials: int = 10


@dataclass(kw_only=True)
class NsgaConfig(RandomConfig):
    name: str = "nsgaii"
    population_size: int = 50


@dataclass(kw_only=True)
class OptunaConfig:
    """The keys below `hydra.sweeper` with `hydra/sweeper=optuna`."""

    defaults: list[Any] = field(default_factory=lambda: [{"sampler": "tpe"}])
    sampler: Any = MISSING
    objective: Any = None
    direction: Any = "minimize"
    n_trials: int = 20
    n_jobs: int = 2
    storage: str | None = None
    study_name: str | None = None
    params: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """A key that a search varies: the overrides to choose from, or the limits of a number, both included."""

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    is_log: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    space: tuple[Dimension, ...]
    fixed: tuple[str, ...]
    """The overrides that all trials share."""
    objectives: Mapping[str, str]
    """Maps a column of the table `cells` to its direction."""
    trials: int
    at_once: int
    """The number of trials that are measured together."""
    sampler: str
    sampler_arguments: Mapping[str, Any]
    storage: str | None
    study_name: str | None


def is_of_sweeper(key: str) -> bool:
    """Return whether an override of this key is one of the sweeper. What it sweeps has overrides of its own."""
    return key.startswith((_GROUP, "hydra.sweeper.")) and not key.startswith("hydra.sweeper.params")


def register() -> None:
    """Let Hydra compose `hydra/sweeper=optuna`, in place of the plugin's if that is installed, too."""
    store = ConfigStore.instance()
    store.store(group=_GROUP, name="optuna", node=OptunaConfig)
    for sampler in (TpeConfig, RandomConfig, NsgaConfig):
        store.store(group=f"{_GROUP}/sampler", name=sampler().name, node=sampler)


def search_of(config: Mapping[str, Any], space: Sequence[Dimension], fixed: Sequence[str]) -> Search:
    """Return the search of the keys below `hydra.sweeper`. Raises RequestError for a mistake."""
    objectives, directions = _texts(config["objective"]), _texts(config["direction"])
    if not objectives:
        problem = "the column of the table `cells` to search by, such as final_snr_db; docs/tables.md lists them"
        raise RequestError(problem, key="hydra.sweeper.objective")
    for direction in directions:
        if direction not in DIRECTIONS:
            raise RequestError(one_of(DIRECTIONS), key="hydra.sweeper.direction", value=printable(direction))
    if len(directions) != len(objectives):
        problem = f"one direction per objective, of which there are {len(objectives)}"
        raise RequestError(problem, key="hydra.sweeper.direction")
    for key in ("n_trials", "n_jobs"):
        if config[key] < 1:
            raise RequestError("must be 1 or more", key=f"hydra.sweeper.{key}", value=str(config[key]))
    if not space:
        raise RequestError("no key has several values to search, such as scheme=8a8w,16a8w", key=_GROUP, value="optuna")
    sampler = dict(config["sampler"])
    return Search(
        space=tuple(space),
        fixed=tuple(fixed),
        objectives=dict(zip(objectives, directions, strict=True)),
        trials=config["n_trials"],
        at_once=config["n_jobs"],
        sampler=sampler.pop("name"),
        sampler_arguments=sampler,
        storage=config["storage"],
        study_name=config["study_name"],
    )


def is_numeric(override: Override) -> bool:
    """Return whether the override sweeps an interval, or a range in its order."""
    return override.is_interval_sweep() or (
        override.is_range_sweep() and not cast(RangeSweep, override.value()).shuffle
    )


def numeric(override: Override) -> Dimension:
    """Return the limits of an override for which `is_numeric`. Raises RequestError for an empty range."""
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep):
        low, high, step = value.start, value.end, None
    else:
        numbers = [cast(float, number) for number in override.sweep_iterator()]
        low, high = (min(numbers), max(numbers)) if numbers else (1, 0)
        step = abs(cast(RangeSweep, value).step)
    if low is None or high is None or low > high:
        raise RequestError("it selects no value", key=key, value=printable(str(override.input_line).partition("=")[2]))
    is_log = isinstance(value, IntervalSweep) and "log" in value.tags
    return Dimension(key=key, low=low, high=high, step=step, is_log=is_log)


def _texts(value: object) -> list[str]:
    """Return a name, or a list of names, as a list. Members of an enumeration are named."""
    if value is None:
        return []
    return [str(item) for item in cast(Sequence[object], [value] if isinstance(value, str) else value)]
