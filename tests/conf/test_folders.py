"""Where a user's own options lie, so that modules beside them can be imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.load import load


def test_the_searched_folders_come_first_then_those_of_single_files_each_once(
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
    assert [cell.names[0] for cell in plan.cells] == ["my_net", "b", "c"]
    assert plan.folders == (mine, alone)


def test_hydras_search_path_counts_and_the_shipped_folder_does_not(mine: Path) -> None:
    assert load([f"hydra.searchpath=[{mine}]"]).folders == (mine,)
    assert load(["model=digits_cnn"]).folders == ()
