"""The options of the groups: unknown options are refused, and the folders of the user's options are listed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qnnsweep.conf.load import load
from qnnsweep.conf.options import SHIPPED
from tests.conf.conftest import Refused

SCHEMES = "16a16w, 16a2w, 16a4w, 16a4w_block, 16a8w, 8a4w, 8a8w, fp16, fp16a8w, fp32"
SOCS = ", ".join(sorted(file.stem for file in (SHIPPED / "soc").glob("*.yaml")))
REFUSALS = {
    "scheme=9a9w": f"scheme=9a9w: no such scheme; did you mean 8a4w or 8a8w? one of {SCHEMES}",
    "scheme=": f"scheme=: one of {SCHEMES}; to sweep write scheme=a,b",
    "scheme=null": f"scheme=null: one of {SCHEMES}; to sweep write scheme=a,b",
    "scheme=[8a8w,16a8w]": (
        f"scheme=['8a8w', '16a8w']: a list in brackets; one of {SCHEMES}; to sweep write scheme=8a8w,16a8w"
    ),
    "scheme=[]": f"scheme=[]: an empty list; one of {SCHEMES}; to sweep write scheme=a,b",
    "soc=SM8560": f"soc=SM8560: no such soc; did you mean SM8350 or SM8450 or SM8550? one of {SOCS}",
    "soc=sm8650": f"soc=sm8650: no such soc; did you mean SM8650? one of {SOCS}",
    "backend=gpu": "backend=gpu: no such backend; one of portable, qnn, xnnpack",
    "experiment=nightli": (
        "experiment=nightli: no such experiment; did you mean nightly? one of nightly, operators, quickstart"
    ),
    "device=no/such/file.yaml": "device=no/such/file.yaml: no such file",
    "farm=nowhere": "farm=nowhere: no such farm; one of local",
    "hydra.searchpath=[/no/where]": (
        "/no/where: not a folder of configuration: it has none of model/, scheme/, soc/, toolchain/, backend/, "
        "device/, farm/, tolerance/, experiment/, and no module"
    ),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_option_that_is_no_regular_file_is_refused_before_it_is_read(
    mine: Path, refused: Refused, kind: str
) -> None:
    file = mine / "model" / "endless.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    assert refused() == f"{file}: not a regular file; remove it, or rename it"
    assert refused(f"model={file}", "hydra.searchpath=[]").endswith("not a regular file; remove it, or rename it")


def test_the_searched_folders_precede_those_of_single_files(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("b", "c"):
        text = (mine / "model" / "my_net.yaml").read_text()
        (alone / f"{name}.yaml").write_text(text.replace("name: my_net", f"name: {name}"))
    # A link leads to the folder of the file itself: that is where its modules lie.
    (tmp_path / "linked").mkdir()
    linked = tmp_path / "linked" / "b.yaml"
    linked.symlink_to(alone / "b.yaml")
    monkeypatch.chdir(tmp_path)
    plan = load([f"model=my_net,{linked},{alone / 'c.yaml'}"], config_dirs=[Path(os.path.relpath(mine))])
    assert [cell.request.names[0] for cell in plan.cells] == ["my_net", "b", "c"]
    assert plan.folders == (mine, alone)


def test_folders_of_hydras_search_path_are_the_users_and_the_shipped_folder_is_not(mine: Path) -> None:
    assert load([f"hydra.searchpath=[{mine}]"]).folders == (mine,)
    assert load(["model=digits_cnn"]).folders == ()


@pytest.mark.parametrize(("override", "line"), REFUSALS.items(), ids=lambda _: "")
def test_an_unknown_option_is_refused_in_one_line(refused: Refused, override: str, line: str) -> None:
    assert refused(override) == line


def test_two_options_of_one_name_are_refused(refused: Refused, mine: Path, tmp_path: Path) -> None:
    (mine / "soc").mkdir()
    file = mine / "soc" / "SM8650.yaml"
    file.write_text("{name: SM8650, arch: 75, vtcm_mib: 8}")
    shipped = SHIPPED / "soc" / "SM8650.yaml"
    assert refused() == f"{file}: {shipped} is a soc of the same name; rename one of them"
    elsewhere = file.rename(tmp_path / "SM8650.yaml")
    assert refused(f"soc={elsewhere}") == (f"{elsewhere}: {shipped} is a soc of the same name; rename one of them")
