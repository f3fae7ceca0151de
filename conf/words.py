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
_CHANGING = (*_OF_PROGRAM, *SAMPLES_KEYS)


def program_words(cell: Overrides, request: Request, options: Options, of_experiment: Collection[str]) -> list[str]:
    """Return the overrides that make the program of a cell and its samples; none if the names say it all.

    `of_experiment`: the keys that `words_of_experiment` returned, whose overrides are in the result, too.
    """
    words = {key_of(word): word for word in cell}
    chosen = [key for key in words if key in GROUPS and key in (*_OF_PROGRAM, *of_experiment)]
    values = {group: quoted_if_needed(options.portable_name(group, value_of(words[group]))) for group in chosen}
    others = [key for key in words if key not in GROUPS]
    changing = [words[key] for key in others if key in of_experiment or key.split(".")[0] in _CHANGING]
    names = {axis: name for axis, name in zip(AXES, request.names, strict=True) if axis in _OF_PROGRAM}
    if not changing and values.items() <= names.items():
        return []
    return [*map("=".join, values.items()), *mask_secrets(changing, request.masked_names)]


def words_of_experiment(experiment: str | None, swept: Collection[str], options: Options) -> list[str]:
    """Return the keys of the overrides that stand for an experiment in a command: `experiment` and what it sweeps.

    They are none if the experiment sets no key of a program, or one of `trend`, which no command but a run takes.
    `experiment`: its override. `swept`: the keys that it sweeps.
    """
    if experiment is None:
        return []
    read = options.experiment(experiment)
    if read is not None and (read.keys.isdisjoint(_CHANGING) or "trend" in read.keys):
        return []
    return ["experiment", *swept]
