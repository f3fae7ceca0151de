"""The words that describe a toolchain, such as `qnn=2.51 executorch=CLONE@COMMIT`."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable
from qnnsweep.conf.toolchains import KEYS, LONGEST_NAME
from qnnsweep.tasks.toolchain.prepared.overlay import commit_sha, split_commit

SHA_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a toolchain shall have. What is not stated is that of this Python environment."""

    qnn: str | None = None
    """A release, `onnxruntime-qnn==VERSION`, or the path of an SDK."""
    executorch: str | None = None
    """A release, or `CLONE@COMMIT`: a git clone of ExecuTorch, and a commit, whose Python files of the QNN backend are
    used."""
    passes_off: tuple[str, ...] = ()
    operators_skipped: tuple[str, ...] = ()

    @property
    def executorch_release(self) -> str | None:
        """The wanted release of ExecuTorch; None if none or a commit is wanted."""
        is_release = self.executorch is not None and re.fullmatch(r"[0-9][\w.]*", self.executorch)
        return self.executorch if is_release else None

    @property
    def default_name(self) -> str:
        """The name of a toolchain for which no name is stated. Raises RequestError if there is no such commit."""
        parts: list[str] = []
        if self.qnn is not None:
            parts.append(f"qnn-{_word(Path(self.qnn).name)}")
        if self.executorch_release is not None:
            parts.append(f"executorch-{self.executorch_release}")
        elif self.executorch is not None:
            parts.append(f"executorch-{commit_sha(*split_commit(self.executorch))[:SHA_DIGITS]}")
        parts += [f"no-{_word(name)}" for name in self.passes_off]
        parts += [f"skip-{_word(name)}" for name in self.operators_skipped]
        name = "-".join(parts)
        if len(name) <= LONGEST_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:SHA_DIGITS]
        return f"{name[: LONGEST_NAME - len(digest) - 1]}-{digest}"


def wanted(values: Mapping[str, str]) -> Wanted:
    """Return the toolchain that the values of `KEYS` describe. Raises RequestError."""
    for key in values.keys() - set(KEYS):
        raise RequestError(f"no such key; one of {', '.join(KEYS)}", key=key, value=values[key])
    for key in values:
        if not values[key]:
            raise RequestError("no value", key=key, value="")
    return Wanted(
        qnn=values.get("qnn"),
        executorch=values.get("executorch"),
        passes_off=_names("passes_off", values),
        operators_skipped=_names("operators_skipped", values),
    )


def parsed_words(words: Sequence[str]) -> tuple[str | None, Wanted]:
    """Return the name, or None, and the toolchain that the words of a command line describe. Raises RequestError."""
    names = [word for word in words if "=" not in word]
    values = dict(word.split("=", 1) for word in words if "=" in word)
    toolchain = wanted(values)
    if len(names) > 1 or not values:
        raise RequestError("write `qnnsweep toolchain add NAME qnn=2.51`, or another of " + ", ".join(KEYS))
    return next(iter(names), None), toolchain


def _names(key: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in `[A,B]` or `A,B`, sorted."""
    text = values.get(key, "")
    names = [name.strip() for name in text.removeprefix("[").removesuffix("]").split(",") if name.strip()]
    if text and not names:
        raise RequestError(f"write {key}=[NAME,NAME]", key=key, value=printable(text))
    return tuple(sorted(set(names)))


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
