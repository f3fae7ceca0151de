"""Packages that pip installs into a folder of a toolchain, from the index that pip is configured to use."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from qnnsweep.conf.errors import RequestError, printable

_DEADLINE_S = 1800
DIGESTS: Mapping[str, Sequence[str]] = {
    "onnxruntime-qnn==2.3.0": (
        "087bb672ca0cabd3c7fed07084478fe78658cfa09fae1cb013099d7b2289dc72",
        "5d3dec6c8065eebe80efb3775b8e5270c56a937c3e611642a8b4ef7f46bb5660",
    ),
    "onnxruntime-qnn==2.4.0": (
        "4c0061ac12d0936f98fe252a24099e6db6fffa62c14fa9c725e001a4147471ee",
        "9db7b8a8b251ba04e9dc7314dbc552a3f8872312326086ac998b9a5429261787",
    ),
    "onnxruntime-qnn==2.5.0": (
        "6a6a8db1e36584b4ac2e5ba356f4943b1916303b7f1fd44e27f4ca056f145dfe",
        "953b0bebad3494e2af32cc8f648894bdae54369072d9f87614bbe5a416b0e929",
    ),
    "onnxruntime-qnn==2.6.0": (
        "33d8f910031b22b08792d706121caee5b4094b3262c0b31e1c2dab8124268897",
        "63710d0291135e47c8aa7edab7048b9acc105f072c603a8c9679e9d202822a73",
    ),
    "onnxruntime-qnn==2.7.0": (
        "c56c01562b8534fe8980cfea4601408d950c065f8251fb862ce82101c52c9849",
        "6feb735e2910127febd9c24c1be0f541bcaf688a90028b7efe55d12aca214c13",
    ),
    "executorch==1.4.1": (
        "92624b57111109bb6e470c145fd0e73de66549b0fcb04cfca4e55ecd8bfe3007",
        "128efe668b6b7dc23573c1aac908939b72ade3482833b071434c17b5549b65f2",
    ),
    "executorch==1.3.1": (
        "ca69888e7281445c3fe830b259f5e80da4d7116d91fe8d4afb82c0f94ab77238",
        "82960659e00b0402cc780d0db1aac355806f43aa8f4e0b6485f4c03e5ced1dbe",
    ),
    "executorch==1.2.0": (
        "746f6081e44c00f073935b452d4810ab92830170b5f2b6804a3559d27346ee41",
        "44090bb8361de77ae551efae045ec577abfb9a4b7f42365627768d2e5735f542",
    ),
}
"""The sha256 of the files of each known release, for Linux on x86_64 and both versions of Python, as PyPI had them on
2026-11-26. A file with another digest is not installed, whatever index pip is configured to use."""


def install(requirement: str, target: Path, environ: Mapping[str, str]) -> None:
    """Install a package without those that it requires. Raises RequestError with pip's reason in one line.

    If the digests of the package are known, pip installs no other file. Otherwise it is *unverified*: see `DIGESTS`.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--no-compile"]
    pip += ["--disable-pip-version-check", f"--target={target}"]
    scratch = target.with_name("scratch")
    scratch.mkdir()
    if known := DIGESTS.get(requirement, ()):
        line = " ".join([requirement, *(f"--hash=sha256:{digest}" for digest in known)])
        (scratch / "required.txt").write_text(f"{line}\n")
        pip += ["--require-hashes", "--requirement", str(scratch / "required.txt")]
    else:
        pip.append(requirement)
    try:
        ran = subprocess.run(
            pip,
            env=dict(environ) | {"TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RequestError(f"pip did not install {requirement} within {_DEADLINE_S} s") from None
    shutil.rmtree(scratch)
    if ran.returncode:
        raise RequestError(f"pip cannot install {requirement}: {_reason(ran.stderr)}")


def _reason(errors: str) -> str:
    """Return pip's reason in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No space left" in line for line in lines):
        return "no space left on the disk; free some space, or set QNNSWEEP_TOOLCHAINS to a folder on another disk"
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return "the index that pip uses has another file than PyPI, so nothing of it was installed; use another index"
    if any("No module named pip" in line for line in lines):
        return "this Python environment has no pip; install it with `python -m ensurepip`"
    stated = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    unreachable = any("connection" in line.lower() for line in lines if line.startswith("WARNING:"))
    hint = "; the package index cannot be reached" if unreachable else "; check pip's index with `pip config list`"
    return printable(next(reversed(stated or lines), "pip gave no reason")) + hint
