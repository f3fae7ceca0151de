"""The request of a bisection: two cells that differ in some keys, or the values of one key from good to bad.

A cell is described by overrides in Hydra's grammar, and by the words of `qnnsweep toolchain add`, such as
`executorch=CLONE@COMMIT`, whose toolchain is prepared when the cell is measured.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.load import load, single_values
from qnnsweep.conf.masking import mask_secrets
from qnnsweep.conf.plan import SWEEP_KEYS, Plan, PlannedCell, refuse_trend
from qnnsweep.conf.syntax import key_of
from qnnsweep.conf.toolchains import KEYS
from qnnsweep.tasks.toolchain.prepared.commits import BETWEEN, Commit, commits, is_range
from qnnsweep.tasks.toolchain.prepared.overlay import split_commit
from qnnsweep.tasks.toolchain.prepared.prepare import check
from qnnsweep.tasks.toolchain.prepared.wanted import SHA_DIGITS, Wanted, wanted

FORM = "write `qnnsweep bisect BAD GOOD [OVERRIDE]…`, or give one key several values, from good to bad"
_LISTS = ("passes_off", "operators_skipped")
"""The keys whose names are changes of their own."""
_BETWEEN_WORDS = re.compile(r"\s+(?=[+~]*[A-Za-z_][\w./@-]*=)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A cell to measure."""

    label: str
    words: tuple[str, ...]
    commit: Commit | None = None

    @property
    def overrides(self) -> list[str]:
        return [word for word in self.words if key_of(word) not in KEYS]

    @property
    def toolchain(self) -> Wanted | None:
        """What the toolchain shall have that has to be prepared; None if it is named, or is the default."""
        values = {key_of(word): word.partition("=")[2] for word in self.words if key_of(word) in KEYS}
        return wanted(values) if values else None

    def plan(self, folders: Sequence[Path], toolchain: str | None = None) -> Plan:
        """Return the plan of the cell. `toolchain`: the name of the prepared one. Raises RequestError."""
        plan = load([*self.overrides, *([f"toolchain={toolchain}"] if toolchain else [])], config_dirs=folders)
        if len(plan.cells) > 1:
            words = printable(" ".join(self.overrides))
            raise RequestError(f"{words}: {len(plan.cells)} cells; give every key but that of the axis one value")
        if any(cell.request.model.cases is not None for cell in plan.cells):
            problem = "cases have no single outcome; bisect one of them, which qnnsweep atlas --case writes"
            raise RequestError(problem, key="model")
        refuse_trend(plan, "a bisection")
        return plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A key in which BAD and GOOD differ, with the words of both; of a list of names, one name and `None`."""

    key: str
    bad: str | None
    good: str | None

    @property
    def label(self) -> str:
        return f"{_word(self.key, self.bad)} instead of {_word(self.key, self.good)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """What a bisection searches: an axis of points from good to bad, or the smallest set of differences."""

    key: str | None
    """The key of the axis; None without an axis."""
    points: tuple[Point, ...] = ()
    """The points of the axis."""
    differences: tuple[Difference, ...] = ()
    common: tuple[str, ...] = ()
    """The words that BAD and GOOD have in common."""
    folders: tuple[Path, ...] = ()
    """The user's folders of configuration."""

    def with_differences(self, chosen: Collection[Difference]) -> Point:
        """Return the cell GOOD with the chosen differences of BAD."""
        words = [*self.common]
        names = {key: [name for word in words if key_of(word) == key for name in _names(key, word)] for key in _LISTS}
        for difference in self.differences:
            value = difference.bad if difference in chosen else difference.good
            if difference.key in _LISTS:
                names[difference.key] += [value] if value else []
            elif value is not None:
                words.append(value)
        words = [word for word in words if key_of(word) not in _LISTS]
        words += [f"{key}=[{','.join(sorted(listed))}]" for key, listed in names.items() if listed]
        labels = (_word(changed.key, changed.bad) for changed in self.differences if changed in chosen)
        return Point(label=", ".join(labels) or "GOOD", words=tuple(words))

    @property
    def bad(self) -> Point:
        return self.points[-1] if self.points else self.with_differences(self.differences)

    @property
    def good(self) -> Point:
        return self.points[0] if self.points else self.with_differences(())


def parsed(words: Sequence[str], folders: Sequence[Path]) -> Bisection:
    """Return the bisection that the words of a command line describe, and check its ends. Raises RequestError."""
    words = sorted(words, key=_is_place)
    axes = {number: points for number, word in enumerate(words) if len(points := _axis(word, folders)) > 1}
    if len(axes) > 1:
        raise RequestError("only one key can have several values", key=", ".join(key_of(words[axis]) for axis in axes))
    if axes:
        ((number, points),) = axes.items()
        others = [other for index, word in enumerate(words) if index != number for other in _split(word)]
        bisection = _on_axis(key_of(words[number]), points, others)
    else:
        bisection = _of_two(words)
    _check(bisection, folders)
    return replace(bisection, folders=tuple(folders))


def masked(words: Sequence[str], masked_names: str) -> list[str]:
    """Return the words of the command line with `***` for every secret."""
    return [" ".join(_masked(override, masked_names) for override in _split(word)) for word in words]


def _masked(override: str, masked_names: str) -> str:
    return override if key_of(override) in KEYS else mask_secrets([override], masked_names)[0]


def _axis(word: str, folders: Sequence[Path]) -> list[Point]:
    """Return one point per value of a word, with its own words only."""
    key, _, value = word.partition("=")
    if len(_split(word)) != 1 or not value or key in _LISTS:
        return []
    if key == "executorch" and is_range(value):
        return [*map(_commit_point, commits(value))]
    if key in KEYS:
        values = [f"{key}={single}" for single in value.split(",")]
    elif "," in value or "(" in value:
        values = single_values(word, config_dirs=folders)
    else:
        return []
    return [Point(label=value, words=(value,)) for value in values]


def _commit_point(commit: Commit) -> Point:
    label = f"{commit.sha[:SHA_DIGITS]} {printable(commit.subject)}"
    return Point(label=label, words=(f"executorch={commit.clone}@{commit.sha}",), commit=commit)


def _on_axis(key: str, points: Iterable[Point], others: Sequence[str]) -> Bisection:
    if key in _by_key(others, "OVERRIDE"):
        raise RequestError("is given twice", key=key)
    complete = (replace(point, words=(*others, *point.words)) for point in points)
    return Bisection(key=key, points=tuple(complete), common=tuple(others))


def _is_place(word: str) -> bool:
    """Return whether a word is the place of the artifacts, which is neither BAD nor GOOD, wherever it is."""
    return word.startswith("artifacts=")


def _of_two(words: Sequence[str]) -> Bisection:
    if sum(not _is_place(word) for word in words) < 2:
        raise RequestError(FORM)
    shared = _by_key(words[2:], "OVERRIDE")
    bad, good = (shared | _by_key(_split(side), name) for side, name in zip(words, ("BAD", "GOOD"), strict=False))
    keys = dict.fromkeys([*bad, *good])
    differences = [pair for key in keys for pair in _differences(key, bad.get(key), good.get(key))]
    if not differences:
        raise RequestError(f"BAD and GOOD are the same request; {FORM}")
    common = tuple(_common(bad, good))
    if {difference.key for difference in differences} == {"executorch"} and (between := _range(differences[0])):
        return _on_axis("executorch", map(_commit_point, commits(between)), common)
    return Bisection(key=None, differences=tuple(differences), common=common)


def _differences(key: str, bad: str | None, good: str | None) -> list[Difference]:
    if key not in _LISTS:
        return [] if bad == good else [Difference(key=key, bad=bad, good=good)]
    of_bad, of_good = (_names(key, word) for word in (bad, good))
    more = [Difference(key=key, bad=name, good=None) for name in sorted(of_bad - of_good)]
    return [*more, *(Difference(key=key, bad=None, good=name) for name in sorted(of_good - of_bad))]


def _common(bad: Mapping[str, str], good: Mapping[str, str]) -> Iterator[str]:
    for key, word in bad.items():
        if key in _LISTS and (names := _names(key, word) & _names(key, good.get(key))):
            yield f"{key}=[{','.join(sorted(names))}]"
        elif key not in _LISTS and good.get(key) == word:
            yield word


def _range(difference: Difference) -> str | None:
    """Return `CLONE@GOOD..BAD` if both sides of the key `executorch` name a commit of the same clone."""
    sides = [side.partition("=")[2] for side in (difference.good, difference.bad) if side is not None and "@" in side]
    if len(sides) < 2:
        return None
    (clone, good), (other, bad) = map(split_commit, sides)
    return f"{clone}@{good}{BETWEEN}{bad}" if clone == other else None


def _names(key: str, word: str | None) -> set[str]:
    return {*getattr(wanted({key: word.partition("=")[2]}), key)} if word is not None else set()


def _check(bisection: Bisection, folders: Sequence[Path]) -> None:
    """Check all points that are known, before anything is prepared or measured. Raises RequestError."""
    for difference in bisection.differences:
        if difference.key.partition(".")[0] in SWEEP_KEYS:
            raise RequestError("BAD and GOOD must have the same value of this key", key=difference.key)
    ends = {bisection.bad: "BAD", bisection.good: "GOOD"}
    cells: dict[tuple[str, ...], PlannedCell] = {}
    for point in (*ends, *bisection.points[1:-1]):
        toolchain, overrides = point.toolchain, tuple(point.overrides)
        if overrides not in cells:  # all commits have the same overrides
            (cells[overrides],) = point.plan(folders).cells
        if toolchain is not None and any(key_of(word) == "toolchain" for word in overrides):
            raise RequestError(f"give either this key or {', '.join(KEYS)}, on both sides", key="toolchain")
        if toolchain is not None and point.commit is None:
            check(toolchain)
        if (impossible := cells[overrides].impossible) is not None and point in ends:
            raise RequestError(f"impossible: {impossible}", key=ends[point])
    requests = [(cells[tuple(point.overrides)].request, point.toolchain) for point in ends]
    if not bisection.points and requests[0] == requests[1]:
        raise RequestError("BAD and GOOD are the same cell")


def _split(text: str) -> list[str]:
    """Return the overrides in a word that has several, with spaces between them."""
    return [word for word in _BETWEEN_WORDS.split(text.strip()) if word]


def _by_key(words: Iterable[str], where: str) -> dict[str, str]:
    by_key: dict[str, str] = {}
    for word in words:
        if "=" not in word:
            raise RequestError(f"not of the form key=value; {FORM}", key=where, value=printable(word))
        if key_of(word) in by_key:
            raise RequestError("is given twice", key=key_of(word))
        by_key[key_of(word)] = word
    return by_key


def _word(key: str, value: str | None) -> str:
    return f"{key}=[{value or ''}]" if key in _LISTS else value or f"the default of {key}"
