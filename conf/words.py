"""The words of a command that makes the program of a cell again."""

from collections.abc import Collection

from qnnsweep.conf.compose import Overrides, quoted_if_needed, value_of
from qnnsweep.conf.masking import mask_secrets
from qnnsweep.conf.names import AXES
from qnnsweep.conf.options import GROUPS, Options
from qnnsweep.conf.places import SAMPLES_KEYS
from qnnsweep.conf.schema import Request
from qnnsweep.conf.syntax import key_of

_OF_PROGRAM = ("model", "scheme", "soc", "backend")


def program_words(cell: Overrides, request: Request, options: Options, swept: Collection[str]) -> list[str]:
    """Return the overrides that make the program of a cell and its samples; none if the names say it all.

    An experiment is one of them if it sets a key of the program. The options of `swept`, the keys that the experiment
    sweeps, are then in the result, too.
    """
    words = {key_of(word): word for word in cell}
    needed = {*_OF_PROGRAM, *SAMPLES_KEYS}
    if "experiment" in words and _sets(words["experiment"], needed, options):
        needed |= {"experiment", *set(swept).intersection(GROUPS)}
    chosen = [group for group in words if group in needed.intersection(GROUPS)]
    values = {group: quoted_if_needed(options.portable_name(group, value_of(words[group]))) for group in chosen}
    changing = [words[key] for key in words if key not in GROUPS and not needed.isdisjoint({key, key.split(".")[0]})]
    names = {axis: name for axis, name in zip(AXES, request.names, strict=True) if axis in _OF_PROGRAM}
    if not changing and values.items() <= names.items():
        return []
    return [*map("=".join, values.items()), *mask_secrets(changing, request.masked_names)]


def _sets(experiment: str, keys: Collection[str], options: Options) -> bool:
    """Return whether an experiment sets one of the keys, or needs Hydra to say it. `experiment`: its override."""
    read = options.experiment(experiment)
    return read is None or not read.keys.isdisjoint(keys)
