"""The shards of a request: together they have its cells, and each can be loaded by itself from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnsweep.conf.load import load, shards
from qnnsweep.conf.options import SHIPPED


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], [[]]),
        (["soc=SM8550,SM8650"], [["soc=SM8550,SM8650"]]),
        (["scheme=8a8w,fp16", "soc=SM8650"], [["soc=SM8650", "scheme=8a8w"], ["soc=SM8650", "scheme=fp16"]]),
        (["scheme=glob(8a*)", "limits.parallel=1"], [
            ["limits.parallel=1", "scheme=8a4w"], ["limits.parallel=1", "scheme=8a8w"],
        ]),
        (["experiment=nightly", "model=digits_cnn", "soc=SM8650"], [
            ["experiment=nightly", "soc=SM8650", "model=digits_cnn", f"scheme={scheme}"] for scheme in ("8a8w", "16a8w")
        ]),
        (["model=digits_cnn", "model.evaluation.count=4"], [["model=digits_cnn", "model.evaluation.count=4"]]),
        (["measure.metrics=[l1,mse]", "soc=SM8550"], [["measure.metrics=[l1,mse]", "soc=SM8550"]]),
    ],
)  # fmt: skip
def test_there_is_one_shard_per_model_and_scheme(overrides: list[str], parts: list[list[str]]) -> None:
    assert shards(overrides) == parts


@settings(max_examples=10)  # composing a cell takes a while
@given(
    models=st.lists(st.sampled_from(["digits_cnn", "minilm_l6"]), unique=True, min_size=1),
    schemes=st.lists(st.sampled_from(["8a8w", "fp16", "16a8w"]), unique=True, min_size=1),
    socs=st.lists(st.sampled_from(["SM8350", "SM8650"]), unique=True, min_size=1),
)
def test_together_they_have_the_cells_of_the_request_in_its_order(
    models: list[str], schemes: list[str], socs: list[str]
) -> None:
    axes = {"model": models, "scheme": schemes, "soc": socs}
    overrides = [f"{axis}={','.join(names)}" for axis, names in axes.items()]
    parts = [load(part).cells for part in shards(overrides)]
    assert [cell for part in parts for cell in part] == list(load(overrides).cells)
    assert [{cell.request.names[:2] for cell in part} for part in parts] == [
        {(model, scheme)} for model in models for scheme in schemes
    ]


def test_another_process_finds_the_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_conf" / "soc").mkdir(parents=True)
    soc = yaml.safe_load((SHIPPED / "soc" / "SM8650.yaml").read_text())
    (tmp_path / "my_conf" / "soc" / "ours.yaml").write_text(yaml.safe_dump(soc | {"name": "SM8450"}))
    model = yaml.safe_load((SHIPPED / "model" / "digits_cnn.yaml").read_text())
    (tmp_path / "its name.yaml").write_text(yaml.safe_dump(model | {"name": "mine"}))
    monkeypatch.chdir(tmp_path)
    (part,) = shards(["model='its name.yaml'", "soc=ours,SM8650", "hydra.searchpath=[my_conf]"])
    monkeypatch.chdir("/")
    assert [cell.request.names[:3] for cell in load(part).cells] == [
        ("mine", "8a8w", "SM8450"),
        ("mine", "8a8w", "SM8650"),
    ]
