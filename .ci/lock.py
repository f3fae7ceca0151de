"""Write requirements/*.txt: the packages of constraints.txt with the sha256 of the files that pip may install.

    .venv/bin/python .ci/lock.py        after a change of constraints.txt or of the dependencies in pyproject.toml

It runs in the environment of the tests, whose metadata say which packages the tests alone need. The digests are those
that the package indexes of this machine publish, for Linux on x86_64 and both versions of Python. A digest of PyTorch's
wheel for CPUs that these indexes do not have (any more) stays in the file as long as the version is the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(40, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
HEAD = "# Written by .ci/lock.py, never by hand. {}\n"
FILES = {
    "build": "What builds the packages that have no wheel.",
    "torch-cpu": "PyTorch for CPUs, where pip is configured to find it.",
    "torch": "PyTorch of the public index, and the libraries that only this PyTorch needs.",
    "run": "What qnnsweep needs, without PyTorch.",
    "dev": "What the tests and the models of the zoo need in addition.",
    "qnn": "The second QNN release of the tests, which is downloaded and not installed.",
    "qnn-devices": "QNN for boards and laptops, which a test unpacks.",
    "aihub": "The client of Qualcomm AI Hub, in an environment of its own: it needs another protobuf.",
}
QNN = "onnxruntime-qnn==2.7.0"
AIHUB = "qai-hub==0.56.0"
DEVICES = ("manylinux_2_34_aarch64", "win_arm64")
Digests = dict[str, set[str]]
"""By requirement, such as `numpy==2.4.6`, the digests of its files."""


def pins_of(path: Path) -> dict[str, str]:
    """Map the name of every package of a file of requirements to its requirement."""
    lines = re.findall(r"^[\w.-]+==[\w.+!-]+", path.read_text(), flags=re.MULTILINE)
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    return {name: f"{name}=={line.partition('==')[2]}" for name, line in zip(names, lines, strict=True)}


def digests_of(path: Path) -> Digests:
    entries = re.findall(r"^(\S+==\S+)((?:[ \\\n]+--hash=sha256:[0-9a-f]{64})*)", path.read_text(), flags=re.MULTILINE)
    return {pin: set(re.findall(r"[0-9a-f]{64}", digests)) for pin, digests in entries}


def needed_names(requirements: Iterable[str]) -> set[str]:
    """Return the canonical names of installed packages and of what they need."""
    waiting, names = [Requirement(line) for line in requirements], set[tuple[str, str]]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in names:
                continue
            names.add((name, extra))
            others = map(Requirement, distribution(name).requires or [])
            waiting += [other for other in others if other.marker is None or other.marker.evaluate({"extra": extra})]
    return {name for name, _ in names}


class Pip:
    """The newest pip, which reads metadata without downloading packages."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self._pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        self._target = folder / "target"
        subprocess.run([*self._pip, "--upgrade", "pip"], check=True)

    def files_of(
        self,
        pins: Iterable[str],
        pythons: Iterable[str] = PYTHONS,
        environment: Mapping[str, str] = os.environ,
        platforms: Iterable[str] = PLATFORMS,
    ) -> Digests:
        """Return the pins with the digests of their files for every version of Python."""
        digests: Digests = {pin: set() for pin in pins}
        for python in pythons:
            target = [f"--python-version={python}", "--implementation=cp", f"--target={self._target}"]
            names = [f"--platform={name}" for name in platforms]
            for pin, digest in self._report(["--no-deps", *target, *names, *digests], environment).items():
                digests[pin].add(digest)
        return digests

    def resolved(self, pin: str, constraints: Path, environment: Mapping[str, str]) -> list[str]:
        """Return the pins of a package and of what it needs here."""
        return list(self._report([pin, f"--constraint={constraints}"], environment))

    def _report(self, arguments: list[str], environment: Mapping[str, str]) -> dict[str, str]:
        command = [*self._pip, "--dry-run", "--ignore-installed", "--report=-", *arguments]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        installs = json.loads(ran.stdout)["install"]
        return {
            f"{canonicalize_name(item['metadata']['name'])}=={item['metadata']['version']}": item["download_info"][
                "archive_info"
            ]["hashes"]["sha256"]
            for item in installs
        }


def torch_for_cpus(pip: Pip, pin: str, path: Path) -> Digests:
    """Return the digests of PyTorch's wheels for CPUs: those that this machine can install, and those of the file."""
    digests = digests_of(path).get(pin, set()) if path.exists() else set[str]()
    for python in PYTHONS:
        with suppress(subprocess.CalledProcessError):  # pip has said that there is no such version
            digests |= pip.files_of([pin], [python])[pin]
    return {pin: digests}


def for_devices(pip: Pip, pin: str) -> Digests:
    """Return the digests of the wheels for other machines than this one."""
    return {pin: set().union(*(pip.files_of([pin], PYTHONS[:1], platforms=[name])[pin] for name in DEVICES))}


def of_client(pip: Pip, path: Path) -> Digests:
    """Return the digests of AI Hub's client and of what it needs. The versions of the file stay."""
    kept = pins_of(path).values() if path.exists() else ()
    return pip.files_of(kept if AIHUB in kept else pip.resolved(AIHUB, Path(os.devnull), os.environ))


def main() -> None:
    folder, constraints = ROOT / "requirements", ROOT / "constraints.txt"
    pins = pins_of(constraints)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    torch, build = pins.pop("torch"), {name: pins.pop(name) for name in ("setuptools",)}
    run = {name: pins.pop(name) for name in sorted(needed_names(project["project"]["dependencies"]) & set(pins))}
    public = {name: text for name, text in os.environ.items() if name != "PIP_FIND_LINKS"}
    public["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.TemporaryDirectory() as working:
        pip = Pip(Path(working))
        known = {*pins, *run, *build}
        needed = pip.resolved(torch, constraints, public)
        only_torch = [pin for pin in needed if pin.partition("==")[0] not in known]
        digests = {
            "build": pip.files_of(build.values()),
            "torch-cpu": torch_for_cpus(pip, f"{torch}+cpu", folder / "torch-cpu.txt"),
            "torch": pip.files_of(only_torch, environment=public),
            "run": pip.files_of(run.values()),
            "dev": pip.files_of(pins.values()),
            "qnn": pip.files_of([QNN]),
            "qnn-devices": for_devices(pip, run["onnxruntime-qnn"]),
            "aihub": of_client(pip, folder / "aihub.txt") | pip.files_of([run["flatbuffers"]]),
        }
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        lines = [
            " \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(digests[name][pin]))])
            for pin in sorted(digests[name])
        ]
        (folder / f"{name}.txt").write_text(HEAD.format(text) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
