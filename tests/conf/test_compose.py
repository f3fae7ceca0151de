"""The fast composition of a sweep returns the requests that Hydra composes cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qnnsweep.conf.compose
from qnnsweep.conf.compose import compose_cells, compose_request
from qnnsweep.conf.load import parse
from qnnsweep.conf.names import AXES
from qnnsweep.conf.options import GROUPS


def assert_both_agree(overrides: list[str], config_dirs: tuple[Path, ...] = ()) -> None:
    with parse(overrides, config_dirs) as parsed:
        cells = list(parsed.cells())
        fast = list(compose_cells(cells, parsed.values, parsed.options))
        assert fast == [compose_request(cell, parsed.options) for cell in cells]
        assert len({id(request) for request in fast}) == len(fast), "cells share a request, which `load` then changes"


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in ("farm", "experiment")])
def test_every_option_that_ships(group: str) -> None:
    assert_both_agree([f"{group}=glob(*)"])


@pytest.mark.parametrize("experiment", ["quickstart", "nightly"])
def test_every_experiment_that_ships(experiment: str) -> None:
    assert_both_agree([f"experiment={experiment}", "model=digits_cnn,minilm_l6", "soc=SM8550,SM8650"])


OPTIONS = {
    "model": ["digits_cnn", "minilm_l6", "my_net", "my_other_net"],
    "scheme": ["8a8w", "fp16", "16a4w_block"],
    "soc": ["SM8350", "SM8650", "interpolated"],
    "toolchain": ["default"],
    "backend": ["qnn", "xnnpack"],
    "device": ["local", "global"],
}
EXPERIMENTS = {
    "only_sweeps": "",
    "sets_a_scheme": "scheme: {observer: HistogramObserver}",
    "sets_another_axis": "backend: {name: other}\nmeasure: {iterations: 3}",
    "interpolates": "soc: {vtcm_mib: '${measure.warm_up}'}",
    "has_defaults": "defaults: [quickstart, _self_]",
}
VALUES = ["measure.iterations=2", "soc.vtcm_mib=1", "++model.arguments.depth=${soc.arch}"]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with options that are not self-contained: one reads another group, one sets another group."""
    folder = tmp_path_factory.mktemp("options")
    for group in ("model", "soc", "device"):
        (folder / group).mkdir()
    for name, width in (("my_net", "2"), ("my_other_net", "${soc.arch}")):
        text = f"name: {name}\nfactory: a:b\narguments: {{width: '{width}', depth: 1}}\n"
        (folder / "model" / f"{name}.yaml").write_text(text)
    (folder / "soc" / "interpolated.yaml").write_text("name: SM8450\narch: ${measure.iterations}\nvtcm_mib: 8\n")
    text = "# @package _global_\ndevice: {name: global}\nsoc: {vtcm_mib: 1}\nscheme: {calibration_samples: 5}\n"
    (folder / "device" / "global.yaml").write_text(text)
    (folder / "experiment").mkdir()
    sweeps = "hydra: {sweeper: {params: {model: 'digits_cnn,minilm_l6', scheme: '8a8w,16a8w', soc: 'SM8550,SM8650'}}}\n"
    for name, text in EXPERIMENTS.items():
        (folder / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n{sweeps}")
    return folder


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_that_sets_keys_or_needs_hydra(options: Path, experiment: str) -> None:
    assert_both_agree([f"experiment={experiment}"], (options,))


@settings(max_examples=15)
@given(data=st.data())
def test_any_sweep_of_options_and_values(options: Path, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True))
    overrides = data.draw(st.lists(st.sampled_from(VALUES), max_size=2, unique=True))
    for axis in axes:
        names = data.draw(st.lists(st.sampled_from(OPTIONS[axis]), min_size=1, max_size=2))
        overrides.append(f"{axis}={','.join(names)}")
    assert_both_agree(overrides, (options,))


def test_self_contained_options_are_composed_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[Sequence[str]] = []
    compose_request = qnnsweep.conf.compose.compose_request
    monkeypatch.setattr(
        "qnnsweep.conf.compose.compose_request",
        lambda overrides, options: composed.append(overrides) or compose_request(overrides, options),
    )
    with parse(["soc=glob(*)"]) as parsed:
        assert len(list(compose_cells(parsed.cells(), parsed.values, parsed.options))) == 21
    assert len(composed) == 1
