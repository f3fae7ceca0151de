"""The check of all files of a store for damage, and the removal of damaged files that can be computed again.

Blobs, results and their keys are computed again when they are missing. The rows of a run cannot be computed again, so a
damaged table is only named. A manifest is read from the run's files and rows when it is missing.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from qnnsweep.tasks.errors import EvidenceError
from qnnsweep.tasks.storage import tables
from qnnsweep.tasks.storage.atomic import translate_os_errors
from qnnsweep.tasks.storage.codec import OtherVersionError, decode
from qnnsweep.tasks.storage.manifest import KEYS, RECORDS, read_manifest
from qnnsweep.tasks.storage.store import Store, blob_name

Kind = Literal["blob", "result", "key", "table", "manifest"]

OnProgress = Callable[[int, int], None]
"""Called with the number of bytes that have been checked, and with the number of all bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """A damaged file. `file`: its name in the store."""

    kind: Kind
    file: str
    problem: str
    links: tuple[str, ...] = ()
    """The readable names of a damaged blob in the folders of runs. They are hard links, so they are damaged too."""
    repaired: bool = False
    """Whether the file and its links have been removed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The files that were checked, by kind, and those that are damaged."""

    checked: dict[str, int]
    bytes: int
    other_versions: int
    """The number of results that another version of qnnsweep wrote. They are whole, and this version ignores them."""
    damages: tuple[Damage, ...]


def verify(store: Store, *, repair: bool, on_progress: OnProgress) -> Verification:
    """Check every blob, result, key, table and manifest of a store in a folder.

    `repair`: remove what is damaged and can be computed again. The caller must then hold the store's exclusive lock.
    """
    files = list(_files(store))
    total, done = sum(size for _, _, size in files), 0
    checked: Counter[str] = Counter({"blob": 0, "result": 0, "key": 0, "table": 0, "manifest": 0})
    damages: list[Damage] = []
    other_versions = 0
    for kind, name, size in files:
        on_progress(done, total)
        done += size
        try:
            with translate_os_errors(store.root / name):
                _CHECKS[kind](store, name)
        except FileNotFoundError:  # a sweep has replaced or removed the file since it was listed
            continue
        except OtherVersionError:
            other_versions += 1
        except (EvidenceError, OSError, ValueError) as error:
            problem = " ".join(str(error).split()).removeprefix(f"{store.display_path(name)} ")
            damages.append(Damage(kind=kind, file=name, problem=problem))
        checked[kind] += 1
    on_progress(total, total)
    damages = _with_links(store, damages)
    if repair:
        damages = [_repaired(store, damage) for damage in damages]
    return Verification(checked=dict(checked), bytes=total, other_versions=other_versions, damages=tuple(damages))


def _files(store: Store) -> Iterator[tuple[Kind, str, int]]:
    """Yield the kind, the name and the size of every file to check."""
    patterns: dict[Kind, str] = {
        "blob": "blobs/*/*",
        "result": f"{RECORDS}/*",
        "key": f"{KEYS}/*",
        "table": "tables/*/run=*/part.parquet",
        "manifest": "runs/*/holds.json",
    }
    for kind, pattern in patterns.items():
        # A name that starts with a dot is one of a file server, for a file that was removed while it was in use.
        for path in sorted(path for path in store.root.glob(pattern) if not path.name.startswith(".")):
            with suppress(FileNotFoundError):
                yield kind, path.relative_to(store.root).as_posix(), path.stat().st_size


def _check_blob(store: Store, name: str) -> None:
    with (store.root / name).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if name != blob_name(sha256):
        raise EvidenceError(f"its sha256 is {sha256}")


def _check_result(store: Store, name: str) -> None:
    decode(store.files.read(name))


def _check_key(store: Store, name: str) -> None:
    """Check Prefect's metadata of a result. They are never used, but Prefect writes them after the result."""
    metadata, expected = json.loads(store.files.read(name)), Path(name).name
    key = cast("dict[str, Any]", metadata).get("storage_key") if isinstance(metadata, dict) else None
    if Path(str(key)).name != expected:  # in stores of earlier versions, a key is an absolute path
        raise EvidenceError("it is not the key of the result with its name")
    if store.files.size(f"{RECORDS}/{expected}") is None:
        raise EvidenceError("there is no result with its name")


def _check_table(store: Store, name: str) -> None:
    tables.checked_part(store, name)


def _check_manifest(store: Store, name: str) -> None:
    manifest = read_manifest(store, name.split("/")[1])
    blobs = {re.fullmatch("[0-9a-f]{64}", sha256) and type(size) for sha256, size in manifest.blobs.items()}
    if {*map(type, manifest.results.values())} - {bool} or blobs - {int}:
        raise EvidenceError("it does not map results to booleans, and blobs to sizes")


_CHECKS: dict[Kind, Callable[[Store, str], None]] = {
    "blob": _check_blob,
    "result": _check_result,
    "key": _check_key,
    "table": _check_table,
    "manifest": _check_manifest,
}


def _with_links(store: Store, damages: list[Damage]) -> list[Damage]:
    """Return the damages with the links of the damaged blobs. The folders of runs are searched only if necessary."""
    inode_of = {damage.file: _inode(store, damage.file) for damage in damages if damage.kind == "blob"}
    if not inode_of:
        return damages
    links: dict[tuple[int, int] | None, list[str]] = {inode: [] for inode in inode_of.values()}
    for name in store.files.names("runs"):
        if (inode := _inode(store, name)) in links:
            links[inode].append(name)
    return [replace(damage, links=tuple(links.get(inode_of.get(damage.file), ()))) for damage in damages]


def _inode(store: Store, name: str) -> tuple[int, int] | None:
    """Return what two names of the same file share, or None if there is no such file any more."""
    with suppress(FileNotFoundError):
        stat = (store.root / name).stat()
        return stat.st_dev, stat.st_ino
    return None


def _repaired(store: Store, damage: Damage) -> Damage:
    """Remove the damaged file, unless it is a table. A result is removed with its key."""
    names = {
        "blob": (damage.file, *damage.links),
        "result": (damage.file, damage.file.replace(RECORDS, KEYS)),
        "key": (damage.file,),
        "manifest": (damage.file,),
        "table": (),
    }[damage.kind]
    for name in names:
        store.files.remove(name)
    return replace(damage, repaired=bool(names))
