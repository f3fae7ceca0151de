"""The plan of a command line: its cells, their order and their values."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qnnsweep.conf.devices import TransportKind
from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load
from qnnsweep.conf.names import AXES
from qnnsweep.conf.plan import Plan
from qnnsweep.conf.schema import LimitsConfig, MeasureConfig, ScheduleConfig, TrendConfig
from qnnsweep.conf.schemes import Precision
from tests.conf.conftest import Refused

REFUSALS = {
    "experiment=nightly,quickstart": "experiment=nightly,quickstart: a sweep has one value of experiment",
    "soc=glob(XX*)": "soc=glob(XX*): it selects no value",
    "~scheme": "~scheme: write scheme=name",
    "scheme@device=8a8w": "scheme@device=8a8w: write scheme=name",
    "trend.nights=10,20": "trend.nights=10,20: a sweep has one value of trend.nights",
    "+device.environment={'A=B':x}": (
        "+device.environment={'A=B':x}: cannot be parsed: no viable alternative at input '{'A=B''; "
        "for example tolerance.final_snr_db={8a8w:20}, whose names have no quotes"
    ),
    "=3": "=3: not of the form key=value: no key",
    "model=my_other_net": "model=my_other_net: model is given twice; to sweep write model=a,b",
    "artifacts=a,b": "artifacts=a,b: a sweep has one value of artifacts",
    "limits.parallel=1,2": "limits.parallel=1,2: a sweep has one value of limits.parallel",
    "measure.iterations=range(4,4)": "measure.iterations=range(4,4): it selects no value",
    "measure.iterations=range(1,9,0)": (
        "measure.iterations=range(1,9,0): cannot be expanded to values: range() arg 3 must not be zero"
    ),
    "measure.iterations=range(1,1000000000)": (
        "measure.iterations=range(1,1000000000): a sweep has at most 10000 cells"
    ),
    "measure.iterations=glob(*)": (
        "measure.iterations=glob(*): glob is valid only for the options of model, scheme, soc, toolchain, backend, "
        "device, farm, tolerance, experiment"
    ),
    "hydra.run.dir=x": (
        "hydra.run.dir=x: the only keys of Hydra that are accepted are hydra.searchpath, hydra/sweeper and "
        "hydra.sweeper.…"
    ),
    "hydra/launcher=basic": (
        "hydra/launcher=basic: the only keys of Hydra that are accepted are hydra.searchpath, hydra/sweeper and "
        "hydra.sweeper.…"
    ),
    "hydra.sweeper.params.soc=SM8550": (
        "hydra.sweeper.params.soc=SM8550: only an experiment has this key; write for example scheme=8a8w,16a8w instead"
    ),
    "measure.iterations=interval(1,4)": (
        "measure.iterations: an interval has no list of values; write range(…), or search with hydra/sweeper=optuna"
    ),
    "hydra.searchpath=3": "hydra.searchpath=3: a list of folders: hydra.searchpath=[/my/conf]",
}


def names(plan: Plan) -> list[str]:
    return [" ".join(cell.request.names) for cell in plan.cells]


def test_the_default_is_one_cell_of_the_smallest_model_on_this_machine() -> None:
    plan = load([])
    assert names(plan) == ["digits_cnn 8a8w SM8650 default qnn local"]
    assert (plan.artifacts, plan.limits, plan.schedule, plan.trend) == (
        "artifacts", LimitsConfig(), ScheduleConfig(), TrendConfig(),
    )  # fmt: skip
    assert plan.cells[0].impossible is None
    request = plan.cells[0].request
    assert request.tolerance.name == "default"
    assert (request.scheme.precision, request.backend.kind) == (Precision.quantized, "qnn")
    assert (request.device.transport, request.measure) == (TransportKind.local, MeasureConfig())


def test_the_model_is_outermost_in_any_order_of_the_overrides(mine: Path) -> None:
    overrides = ["soc=SM8550,SM8650", "scheme=8a8w,16a8w", "model=my_net,my_other_net", "measure.iterations=5"]
    plan = load(overrides, config_dirs=[mine])
    assert names(plan) == [
        "my_net 8a8w SM8550 default qnn local",
        "my_net 8a8w SM8650 default qnn local",
        "my_net 16a8w SM8550 default qnn local",
        "my_net 16a8w SM8650 default qnn local",
        "my_other_net 8a8w SM8550 default qnn local",
        "my_other_net 8a8w SM8650 default qnn local",
        "my_other_net 16a8w SM8550 default qnn local",
        "my_other_net 16a8w SM8650 default qnn local",
    ]
    assert {cell.request.measure.iterations for cell in plan.cells} == {5}


def test_globs_and_choices_sweep(mine: Path) -> None:
    plan = load(["model=glob(my_*)", "scheme=choice(fp16,8a8w)"], config_dirs=[mine])
    assert names(plan) == [
        "my_net fp16 SM8650 default qnn local",
        "my_net 8a8w SM8650 default qnn local",
        "my_other_net fp16 SM8650 default qnn local",
        "my_other_net 8a8w SM8650 default qnn local",
    ]


def test_the_quickstart_is_nine_cells() -> None:
    plan = load(["experiment=quickstart"])
    assert names(plan) == [
        f"digits_cnn {scheme} {soc} default qnn local"
        for scheme in ("fp16", "8a8w", "16a8w")
        for soc in ("SM8550", "SM8650", "SM8750")
    ]
    assert [cell.impossible for cell in plan.cells] == [None] * 9


def test_the_nightly_sweep_is_every_model_in_two_schemes_on_six_phones() -> None:
    assert names(load(["experiment=nightly"])) == [
        f"{model} {scheme} {soc} default qnn local"
        for model in ("digits_cnn", "efficientnet_lite0", "minilm_l6")
        for scheme in ("8a8w", "16a8w")
        for soc in ("SM8350", "SM8450", "SM8550", "SM8650", "SM8750", "SM8850")
    ]


@pytest.mark.parametrize("experiment", ["experiment=quickstart", "+experiment=quickstart"])
def test_the_command_line_takes_precedence_over_the_experiment(experiment: str) -> None:
    plan = load([experiment, "soc=SM8450", "scheme=8a8w,16a8w"])
    assert names(plan) == ["digits_cnn 8a8w SM8450 default qnn local", "digits_cnn 16a8w SM8450 default qnn local"]


def test_a_users_experiment_sets_values_and_axes(mine: Path) -> None:
    (mine / "experiment").mkdir()
    (mine / "experiment" / "weekly.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /tolerance: none\n"
        "measure: {iterations: 7}\n"
        "hydra: {sweeper: {params: {model: 'my_net,my_other_net'}}}\n"
    )
    plan = load(["experiment=weekly"], config_dirs=[mine])
    assert names(plan) == ["my_net 8a8w SM8650 default qnn local", "my_other_net 8a8w SM8650 default qnn local"]
    assert {(cell.request.tolerance.name, cell.request.measure.iterations) for cell in plan.cells} == {("none", 7)}


@pytest.mark.parametrize("override", ["artifacts=results", "samples=null", "reuse=capture", "masked_names=pin"])
def test_a_folder_that_has_the_name_of_a_key_is_no_group(mine: Path, override: str) -> None:
    key, _, value = override.partition("=")
    (mine / key).mkdir()
    (mine / key / f"{value}.yaml").write_text("{}\n")
    assert load(["model=my_net", override], config_dirs=[mine]) == replace(
        load(["model=my_net", override], config_dirs=[elsewhere(mine)]), folders=(mine,)
    )


def elsewhere(mine: Path) -> Path:
    """Return another folder with the same models and nothing else."""
    folder = mine.with_name("elsewhere")
    shutil.copytree(mine / "model", folder / "model")
    return folder


def test_hydras_search_path_adds_a_folder(mine: Path) -> None:
    assert names(load(["model=my_net", f"hydra.searchpath=[{mine}]"])) == ["my_net 8a8w SM8650 default qnn local"]


def test_a_single_file_is_selected_by_its_path(mine: Path, tmp_path: Path) -> None:
    file = (mine / "model" / "my_net.yaml").rename(tmp_path / "elsewhere.yaml")
    assert names(load([f"model={file}"])) == ["my_net 8a8w SM8650 default qnn local"]
    assert names(load([f"model={file},my_other_net"], config_dirs=[mine])) == [
        "my_net 8a8w SM8650 default qnn local",
        "my_other_net 8a8w SM8650 default qnn local",
    ]


def test_an_interpolation_reads_other_groups_of_the_same_cell(mine: Path) -> None:
    file = mine / "model" / "my_net.yaml"
    file.write_text(file.read_text().replace("width: 2", "width: ${soc.arch}"))
    plan = load(["model=my_net", "soc=SM8550,SM8650"], config_dirs=[mine])
    assert [cell.request.model.arguments for cell in plan.cells] == [{"width": 73}, {"width": 75}]


def test_an_argument_that_is_the_size_of_an_input_is_an_axis_if_it_is_part_of_the_name(mine: Path) -> None:
    text = (mine / "model" / "my_net.yaml").read_text()
    sized = text.replace("name: my_net", "name: my_net_${model.arguments.width}")
    (mine / "model" / "my_net.yaml").write_text(sized.replace("[1, 3, 8, 8]", "[1, 3, 8, '${model.arguments.width}']"))
    models = [
        cell.request.model for cell in load(["model=my_net", "model.arguments.width=1,32"], config_dirs=[mine]).cells
    ]
    assert [(model.name, model.inputs[0].shape, model.arguments) for model in models] == [
        ("my_net_1", [1, 3, 8, 1], {"width": 1}),
        ("my_net_32", [1, 3, 8, 32], {"width": 32}),
    ]


def test_keys_below_arguments_can_be_added_and_removed(mine: Path) -> None:
    plan = load(["model=my_net", "+model.arguments.depth=3", "~model.arguments.width"], config_dirs=[mine])
    assert plan.cells[0].request.model.arguments == {"depth": 3}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b\n$(reboot); `x`", "名前", "-rf", "x" * 200])
def test_a_hostile_name_is_only_a_name(mine: Path, name: str) -> None:
    file = mine / "model" / "my_net.yaml"
    file.write_text(file.read_text().replace("name: my_net", f"name: {json.dumps(name)}"))
    assert load(["model=my_net"], config_dirs=[mine]).cells[0].request.names[0] == name


def test_loading_leaves_nothing_behind(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    monkeypatch.setattr("tempfile.tempdir", str(working))
    load([f"model={mine / 'model' / 'my_net.yaml'}"])
    assert list(working.iterdir()) == []


def test_a_refused_request_does_not_affect_the_next(mine: Path) -> None:
    with pytest.raises(RequestError):
        load(["model=my_net", "measure.iterations=x"], config_dirs=[mine])
    assert names(load(["model=my_net"], config_dirs=[mine])) == ["my_net 8a8w SM8650 default qnn local"]


def test_a_plan_can_be_read_without_importing_hydra() -> None:
    code = "import sys; from qnnsweep.conf import plan, options, hydra_errors; sys.exit('hydra' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["scheme=8a8w,fp16", "soc=SM8550,SM8650,SM8750", "scheme.calibration_samples=4", "soc.vtcm_mib=2"],
        ["model=digits_cnn,minilm_l6", "backend=qnn,xnnpack", "measure.iterations=2", "model.evaluation.count=2"],
        ["experiment=nightly", "tolerance=none"],
        ["model=my_net,digits_cnn", "soc=SM8550,SM8650", "device=local,own"],
    ],
    ids=str,
)
def test_a_cell_of_a_sweep_equals_the_cell_loaded_alone(mine: Path, overrides: list[str]) -> None:
    (mine / "device").mkdir(exist_ok=True)
    # This option sets a key of another group, for the cells of this device only.
    option = "# @package _global_\ndevice: {name: own}\nsoc: {vtcm_mib: 1}\n"
    (mine / "device" / "own.yaml").write_text(option)
    plan = load(overrides, config_dirs=[mine])
    rest = [override for override in overrides if override.partition("=")[0] not in (*AXES, "experiment")]
    for cell in plan.cells[::3]:
        names = [f"{axis}={name}" for axis, name in zip(AXES, cell.request.names, strict=True)]
        (alone,) = load([*names, *rest], config_dirs=[mine]).cells
        assert replace(alone.request, schedule=cell.request.schedule) == cell.request


@pytest.mark.parametrize(("override", "line"), REFUSALS.items(), ids=lambda _: "")
def test_a_wrong_override_is_refused_in_one_line(refused: Refused, override: str, line: str) -> None:
    assert refused(override) == line


def test_a_sweep_with_too_many_cells_is_refused_before_any_is_composed(refused: Refused) -> None:
    ranges = ["measure.iterations=range(1,200)", "measure.warm_up=range(1,200)"]
    assert refused(*ranges) == "39601 cells: a sweep has at most 10000"
