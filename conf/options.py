"""The options of each configuration group, from the shipped folder, the user's folders and single files."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard, cast

import yaml

from qnnsweep.conf.errors import RequestError, did_you_mean, one_of, printable
from qnnsweep.conf.limits import check_file
from qnnsweep.conf.named import FORMS, NamedModel, named_model
from qnnsweep.conf.names import AXES
from qnnsweep.conf.toolchains import toolchains_folder

SHIPPED = Path(__file__).parent
GROUPS = (*AXES, "farm", "tolerance", "experiment")


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """What an experiment sets: its keys at the top, and the values of the keys that it sweeps."""

    keys: frozenset[str]
    swept: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of every group, by name. `links`: a folder with links to what Hydra must see of the user's files."""

    files: Mapping[str, dict[str, Path]]
    config_dirs: tuple[Path, ...]
    links: Path
    toolchains: tuple[Path, ...] = ()
    """The folder of the toolchains that `qnnsweep toolchain add` prepared, if there is one."""
    named: dict[str, NamedModel] = field(default_factory=dict[str, NamedModel])
    """The models by name that were selected, by the names of their options."""

    @classmethod
    def of(cls, config_dirs: Sequence[Path], *, links: Path) -> "Options":
        """Return the options of the shipped folder and of `config_dirs`.

        Raises RequestError for a folder that has neither a subfolder for any group nor a module. Also raises it for two
        options of one group that have equal names, because Hydra would use the first option without a message.
        """
        files: dict[str, dict[str, Path]] = {group: {} for group in GROUPS}
        prepared = toolchains_folder(os.environ)
        toolchains = (prepared,) if (prepared / "toolchain").is_dir() else ()
        for folder in (SHIPPED, *toolchains, *config_dirs):
            if not any((folder / group).is_dir() for group in GROUPS) and not any(folder.glob("*.py")):
                wanted = ", ".join(f"{group}/" for group in GROUPS)
                problem = f"not a folder of configuration: it has none of {wanted}, and no module"
                raise RequestError(f"{printable(folder)}: {problem}")
            for group, options in files.items():
                for file in sorted((folder / group).glob("*.yaml")):
                    if folder != SHIPPED:
                        check_file(file)
                    _check_unique(group, file, options.setdefault(file.stem, file))
        folders = tuple(folder.absolute() for folder in config_dirs)
        for number, folder in enumerate(folders):
            seen = links / f".{number}"
            seen.mkdir()
            for group in (*GROUPS, "hydra"):
                if (folder / group).is_dir():
                    (seen / group).symlink_to(folder / group)
        return cls(files=files, config_dirs=folders, links=links, toolchains=toolchains)

    @property
    def search_path(self) -> tuple[Path, ...]:
        """The folders that Hydra must search in addition to the shipped folder.

        Of a user's folder, they have the groups alone: Hydra would take `artifacts=…` for an option of `artifacts/`.
        """
        groups = (self.links / f".{number}" for number in range(len(self.config_dirs)))
        links = (self.links,) if any(not link.name.startswith(".") for link in self.links.iterdir()) else ()
        return (*self.toolchains, *groups, *links)

    @property
    def user_folders(self) -> tuple[Path, ...]:
        """The folders of the user's own options and code.

        They are `config_dirs`, the folders of files that were selected by path, and those of the code of models that
        were selected by name.
        """
        files = (link.resolve().parent for link in sorted(self.links.glob("*/*.yaml")) if link.is_symlink())
        code = (model.folder for model in self.named.values() if model.folder is not None)
        return tuple(dict.fromkeys((*self.config_dirs, *files, *code)))

    def name(self, group: str, value: object) -> str:
        """Return the name of the option that `group=value` selects. Raises RequestError if there is no such option.

        If `value` is the path of a file, the option's name is the file's stem. If `value` is a model by name, such as
        `timm:resnet18`, its option is written to `links`.
        """
        options = self.files[group]
        if not isinstance(value, str) or not value:
            is_list = isinstance(value, list)
            names = [str(item) for item in cast(list[object], value)] if is_list else []
            noun = "a list in brackets; " if names else "an empty list; " if is_list else ""
            problem = f"{noun}{one_of(options)}; to sweep write {group}={printable(','.join(names)) or 'a,b'}"
            raise RequestError(problem, key=group, value=printable(cast(object, value)))
        if value.endswith(".yaml"):
            return self._link(group, Path(value).expanduser())
        if value not in options:
            if group == "model" and (model := named_model(value, self.config_dirs)):
                return self._write(model)
            problem = f"no such {group}; {did_you_mean(value, options)}{one_of(options)}"
            if group == "model":
                problem += f"; or a model by name: {', '.join(FORMS)}"
            if group == "toolchain":
                problem += "; prepare others with `qnnsweep toolchain add`"
            raise RequestError(problem, key=group, value=printable(value))
        return value

    def names_in_files(self, group: str) -> set[str]:
        """Return the values of the key `name` in the files of a group's options. Unreadable files are left out."""
        names: set[str] = set()
        for file in self.files[group].values():
            with suppress(OSError, ValueError):
                names |= {line.strip("'\" ") for line in re.findall(r"^name:(.*)$", file.read_text(), re.MULTILINE)}
        return names

    def file(self, override: str) -> Path | None:
        """Return the file of the option that the override `group='name'` selects, or None if no such option exists."""
        group, _, name = override.partition("=")
        return self.files[group].get(name.strip("'"))

    def experiment(self, override: str) -> "Experiment | None":
        """Return what the experiment that the override selects sets; None if only Hydra can say it.

        Hydra is needed for a list of defaults, an interpolation, keys of another package, and for any mistake.
        """
        file = self.file(override)
        text = "" if file is None else file.read_text(errors="replace")
        if "${" in text or not text.startswith("# @package _global_\n") or text.count("@package") > 1:
            return None
        with suppress(yaml.YAMLError):
            contents: object = yaml.safe_load(text)
            if _has_text_keys(contents) and "defaults" not in contents:
                swept: object = contents
                for name in ("hydra", "sweeper", "params"):
                    swept = swept.get(name, {}) if _has_text_keys(swept) else None
                if _has_text_keys(swept) and all(isinstance(values, str) for values in swept.values()):
                    return Experiment(keys=frozenset(contents), swept={key: str(swept[key]) for key in swept})
        return None

    def is_self_contained(self, override: str) -> bool:
        """Return whether the option that the override selects neither sets nor reads a key of another group."""
        file = self.file(override)
        return file is not None and not re.search(rb"@package|\$\{|^defaults:", file.read_bytes(), flags=re.MULTILINE)

    def has_interpolation(self, override: str) -> bool:
        """Return whether the option that the override selects may read a key of another group."""
        file = self.file(override)
        return file is None or b"${" in file.read_bytes()

    def portable_name(self, group: str, name: str) -> str:
        """Return a value that selects the option in any process: its name, or the absolute path of a given file."""
        if group == "model" and name in self.named:
            return self.named[name].selector
        file = self.files[group][name]
        return str(file.resolve()) if self.links in file.parents else name

    def _link(self, group: str, file: Path) -> str:
        if not file.is_file():
            raise RequestError("no such file", key=group, value=printable(file))
        check_file(file)
        link = self.links / group / file.name
        _check_unique(group, file, self.files[group].setdefault(file.stem, link), new=link)
        if self.files[group][file.stem] == link and not link.exists():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(file.resolve())
        return file.stem

    def _write(self, model: NamedModel) -> str:
        """Write the option of a model by name, and return its name. Raises RequestError if the name is taken.

        If a model of the shipped folder or of the user's folders has the name, the library is added to it.
        """
        if model.option in self.files["model"] and model.option not in self.named:
            model = model.with_long_name
        file = self.links / "model" / f"{model.option}.yaml"
        known = self.files["model"].setdefault(model.option, file)
        if self.named.setdefault(model.option, model) != model or known != file:
            taken = self.named[model.option].selector if known == file else printable(known)
            problem = (
                f"{printable(taken)} has the same name, {printable(model.name)}; give this one another name: "
                f"`qnnsweep init model {printable(model.selector)} --name NAME` writes its file of configuration"
            )
            raise RequestError(problem, key="model", value=printable(model.selector))
        file.parent.mkdir(exist_ok=True)
        file.write_text(model.yaml)
        return model.option


def _has_text_keys(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in cast(dict[object, object], value))


def _check_unique(group: str, file: Path, known: Path, new: Path | None = None) -> None:
    if known != new and known.resolve() != file.resolve():
        raise RequestError(f"{printable(file)}: {printable(known)} is a {group} of the same name; rename one of them")
