"""The options of every configuration group: the shipped ones, the user's own folders, and single files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import RequestError, did_you_mean, one_of, printable
from conf.names import AXES

SHIPPED = Path(__file__).parent
GROUPS = (*AXES, "farm", "tolerance", "experiment")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Every group's options by name. A file asked for by its path becomes one through a link below `links`."""

    files: Mapping[str, dict[str, Path]]
    searched: tuple[Path, ...]
    links: Path

    @classmethod
    def of(cls, searched: Sequence[Path], *, links: Path) -> Options:
        """The options of the shipped folder and of `searched`, each with at least one folder named after a group.

        Raises RequestError for another kind of folder and for two options of one name: Hydra would silently take one.
        """
        files: dict[str, dict[str, Path]] = {group: {} for group in GROUPS}
        for folder in (SHIPPED, *searched):
            if not any((folder / group).is_dir() for group in GROUPS):
                wanted = ", ".join(f"{group}/" for group in GROUPS)
                raise RequestError(f"{printable(folder)}: not a folder of configuration: it has none of {wanted}")
            for group, options in files.items():
                for file in sorted((folder / group).glob("*.yaml")):
                    _one_of_each_name(group, file, options.setdefault(file.stem, file))
        return cls(files=files, searched=tuple(folder.absolute() for folder in searched), links=links)

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that must be searched besides the shipped one."""
        return (*self.searched, self.links) if any(self.links.iterdir()) else self.searched

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """Where the user's own options lie: the searched folders, and those of single files."""
        files = (link.resolve().parent for link in sorted(self.links.glob("*/*.yaml")))
        return tuple(dict.fromkeys((*self.searched, *files)))

    def name(self, group: str, value: object) -> str:
        """The name of the option that `group=value` means: a name as it is, or a file ending in .yaml.

        Raises RequestError when there is none.
        """
        options = self.files[group]
        if not isinstance(value, str) or not value:
            raise RequestError(f"{group}={printable(value)}: {one_of(options)}; to sweep write {group}=a,b")
        if value.endswith(".yaml"):
            return self._link(group, Path(value).expanduser())
        if value not in options:
            guess = did_you_mean(value, options)
            raise RequestError(f"{group}={printable(value)}: no such {group}; {one_of(options)}{guess}")
        return value

    def stands_alone(self, line: str) -> bool:
        """Whether the option that `group='name'` chooses says nothing of other groups, and takes nothing from them."""
        text = self._bytes(line)
        return text is not None and not re.search(rb"@package|\$\{|^defaults:", text, flags=re.MULTILINE)

    def is_plain(self, line: str) -> bool:
        """Whether the option takes nothing from elsewhere."""
        text = self._bytes(line)
        return text is not None and b"${" not in text

    def _bytes(self, line: str) -> bytes | None:
        """What is in the option's file, readable or not; None where `group='name'` chooses none."""
        group, _, name = line.partition("=")
        file = self.files[group].get(name.strip("'"))
        return None if file is None else file.read_bytes()

    def anywhere(self, group: str, name: str) -> str:
        """What an option is asked for by from any folder and process: its name, or the path of a single file."""
        file = self.files[group][name]
        return str(file.resolve()) if self.links in file.parents else name

    def _link(self, group: str, file: Path) -> str:
        if not file.is_file():
            raise RequestError(f"{group}={printable(file)}: no such file")
        link = self.links / group / file.name
        _one_of_each_name(group, file, self.files[group].setdefault(file.stem, link), new=link)
        if self.files[group][file.stem] == link and not link.exists():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(file.resolve())
        return file.stem


def _one_of_each_name(group: str, file: Path, known: Path, new: Path | None = None) -> None:
    if known != new and known.resolve() != file.resolve():
        raise RequestError(
            f"{printable(file)}: there is a {group} of that name already, {printable(known)}; rename one"
        )
