"""The words of commands: overrides that mean the same in any folder, and those that make a cell's program again."""

from collections.abc import Collection, Sequence

from qnnsweep.conf.compose import Overrides, quoted_if_needed, value_of
from qnnsweep.conf.masking import mask_secrets
from qnnsweep.conf.names import AXES
from qnnsweep.conf.options import GROUPS, Options
from qnnsweep.conf.places import SAMPLES_KEYS
from qnnsweep.conf.schema import Request
from qnnsweep.conf.syntax import key_of

_OF_PROGRAM = ("model", "scheme", "soc", "backend")
_CHANGING = (*_OF_PROGRAM, *SAMPLES_KEYS)


def joined(key: str, values: Sequence[str], options: Options) -> str:
    """Join the overrides of one key into one override that sweeps all values. Paths of single files become absolute."""
    if key in GROUPS:
        names = (options.portable_name(key, value_of(value)) for value in values)
        return f"{key}={','.join(map(quoted_if_needed, names))}"
    first, *others = values
    return ",".join([first, *(other.partition("=")[2] for other in others)])


def program_words(cell: Overrides, request: Request, options: Options, of_experiment: Collection[str]) -> list[str]:
    """Return the overrides that make the program of a cell and its samples; none if the names say it all.

    `of_experiment`: the keys that `keys_of_experiment` returned, whose overrides are in the result, too.
    """
    words = {key_of(word): word for word in cell}
    chosen = [key for key in words if key in GROUPS and key in (*_OF_PROGRAM, *of_experiment)]
    selecting = [joined(key, [words[key]], options) for key in chosen]
    others = [key for key in words if key not in GROUPS]
    changing = [words[key] for key in others if key in of_experiment or key.split(".")[0] in _CHANGING]
    names = {f"{axis}={name}" for axis, name in zip(AXES, request.names, strict=True) if axis in _OF_PROGRAM}
    if not changing and names.issuperset(selecting):
        return []
    return [*selecting, *mask_secrets(changing, request.masked_names)]


def keys_of_experiment(selected: Sequence[str], swept: Sequence[str], options: Options) -> list[str]:
    """Return the keys of the overrides that stand for an experiment in a command: `experiment` and what it sweeps.

    They are none if the experiment sets no key of a program, or one of `trend`, which no command but a run takes.
    `selected`: the override that selects the experiment, if there is one. `swept`: the keys that it sweeps.
    """
    if not selected:
        return []
    read = options.experiment(selected[0])
    if read is not None and (read.keys.isdisjoint(_CHANGING) or "trend" in read.keys):
        return []
    return ["experiment", *swept]
