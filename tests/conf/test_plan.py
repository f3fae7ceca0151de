"""The checks across cells: equal cells become one, different cells have different names."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load
from tests.conf.conftest import Refused

TWO_OF_ONE_NAME = (
    "two different cells would both be named model={} scheme=8a8w soc=SM8650 toolchain=default backend=qnn "
    "device=local; only the names of model, scheme, soc, toolchain, backend, device distinguish cells: "
    "choose different names"
)
REFUSALS = {
    "measure.iterations=1,2": f"measure.iterations: {TWO_OF_ONE_NAME.format('my_net')}",
    "tolerance=default,none": f"tolerance: {TWO_OF_ONE_NAME.format('my_net')}",
}


@pytest.mark.parametrize(("override", "line"), REFUSALS.items(), ids=lambda _: "")
def test_two_different_cells_of_one_name_are_refused(refused: Refused, override: str, line: str) -> None:
    assert refused(override) == line


def test_a_sweep_has_one_artifacts_location_even_with_an_interpolation(refused: Refused) -> None:
    assert refused("artifacts=${soc.name}", "soc=SM8550,SM8650") == (
        "artifacts: its value differs between cells; a sweep has only one value of this key"
    )


def test_two_models_of_one_name_are_refused(mine: Path) -> None:
    file = mine / "model" / "my_other_net.yaml"
    file.write_text(file.read_text().replace("name: my_other_net", "name: my_net").replace("width: 2", "width: 3"))
    with pytest.raises(RequestError) as caught:
        load(["model=my_net,my_other_net"], config_dirs=[mine])
    assert str(caught.value) == f"model: {TWO_OF_ONE_NAME.format('my_net')}"


def test_equal_cells_become_one(mine: Path) -> None:
    assert len(load(["model=my_net,my_net"], config_dirs=[mine]).cells) == 1


def test_a_swept_value_makes_several_cells_when_it_is_in_a_name(mine: Path) -> None:
    swept = ["scheme.calibration_samples=range(2,4)", "scheme.name='8a8w on ${scheme.calibration_samples}'"]
    plan = load(["model=my_net", *swept], config_dirs=[mine])
    assert [cell.request.scheme.name for cell in plan.cells] == ["8a8w on 2", "8a8w on 3"]
    assert [cell.request.scheme.calibration_samples for cell in plan.cells] == [2, 3]
