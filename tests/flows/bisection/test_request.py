"""The words of `qnnsweep bisect`: an axis from good to bad, or the differences between two cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.flows.bisection.request import masked, parsed
from qnnsweep.tasks.errors import RequestError
from qnnsweep.tasks.toolchain.prepared.wanted import Wanted
from tests.toolchain.prepared.small_clone import SmallClone

CELL = ("model=digits_cnn", "scheme=8a8w", "soc=SM8650")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> SmallClone:
    clone = SmallClone(tmp_path_factory.mktemp("clone"))
    for message in ("zero", "one", "two"):
        clone.commit(message)
    return clone


def test_every_key_and_every_pass_in_which_the_two_cells_differ_is_a_change() -> None:
    bisection = parsed(["scheme=16a8w passes_off=[FoldQDQ,I64toI32]", "passes_off=[I64toI32] soc=SM8750", *CELL], [])
    assert [difference.label for difference in bisection.differences] == [
        "scheme=16a8w instead of scheme=8a8w",
        "soc=SM8650 instead of soc=SM8750",
        "passes_off=[FoldQDQ] instead of passes_off=[]",
    ]
    _, soc, switched_off = bisection.differences
    assert bisection.bad.overrides == ["model=digits_cnn", "scheme=16a8w", "soc=SM8650"]
    assert bisection.bad.toolchain == Wanted(passes_off=("FoldQDQ", "I64toI32"))
    assert bisection.good.overrides == ["model=digits_cnn", "scheme=8a8w", "soc=SM8750"]
    assert bisection.good.toolchain == Wanted(passes_off=("I64toI32",))
    mixed = bisection.with_differences([soc, switched_off])
    assert mixed.overrides == ["model=digits_cnn", "scheme=8a8w", "soc=SM8650"]
    assert mixed.toolchain == bisection.bad.toolchain
    assert mixed.label == "soc=SM8650, passes_off=[FoldQDQ]"


def test_a_key_that_only_one_cell_states_has_its_default_in_the_other() -> None:
    bisection = parsed(["scheme.observer=HistogramObserver", "", *CELL], [])
    (difference,) = bisection.differences
    assert difference.label == "scheme.observer=HistogramObserver instead of the default of scheme.observer"
    assert bisection.good.words == CELL


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("soc=SM8550,SM8650,SM8750", ["soc=SM8550", "soc=SM8650", "soc=SM8750"]),
        ("qnn=2.49,2.51", ["qnn=2.49", "qnn=2.51"]),
        ("model.calibration.count=8,16", ["model.calibration.count=8", "model.calibration.count=16"]),
    ],
)
def test_a_key_with_several_values_is_an_axis_wherever_it_is(axis: str, values: list[str]) -> None:
    for words in ([axis, "model=digits_cnn"], ["model=digits_cnn", axis]):
        bisection = parsed(words, [])
        assert (bisection.key, bisection.differences) == (axis.partition("=")[0], ())
        assert [point.label for point in bisection.points] == values
        assert [point.words for point in bisection.points] == [("model=digits_cnn", value) for value in values]


def test_two_commits_of_a_clone_are_the_ends_of_an_axis(clone: SmallClone) -> None:
    first, *_, last = clone.commits
    range_ = parsed([f"executorch={clone.folder}@{first}..{last}", *CELL], [])
    assert range_ == parsed([f"executorch={clone.folder}@{last}", f"executorch={clone.folder}@{first}", *CELL], [])
    assert [point.label for point in range_.points] == [
        f"{sha[:12]} {subject}" for sha, subject in zip(clone.commits, ("zero", "one", "two"), strict=True)
    ]
    assert [point.toolchain for point in range_.points] == [
        Wanted(executorch=f"{clone.folder}@{sha}") for sha in clone.commits
    ]


def test_secrets_are_masked_in_every_word() -> None:
    secret = "+device.environment.API_TOKEN=abc scheme=8a8w"
    assert masked([secret, "executorch=a@b c", *CELL], "token") == [
        "+device.environment.API_TOKEN=*** scheme=8a8w", "executorch=a@b c", *CELL,
    ]  # fmt: skip


FORM = "write `qnnsweep bisect BAD GOOD [OVERRIDE]…`, or give one key several values, from good to bad"
WRONG = {
    ("soc=SM8650",): FORM,
    ("soc=SM8650", "SM8750"): f"GOOD=SM8750: not of the form key=value; {FORM}",
    ("scheme=8a8w", "scheme=8a8w", "model=digits_cnn"): f"BAD and GOOD are the same request; {FORM}",
    ("scheme=8a8w", "", "model=digits_cnn"): "BAD and GOOD are the same cell",
    ("scheme=8a8w,16a8w", "soc=SM8650,SM8750"): "scheme, soc: only one key can have several values",
    ("scheme=8a8w scheme=16a8w", "", *CELL): "scheme: is given twice",
    ("soc=SM8650", "soc=SM8750", "experiment=quickstart"): "experiment=quickstart soc=SM8650: 3 cells; give every key "
    "but that of the axis one value",
    ("soc=SM1", "soc=SM8650", "model=digits_cnn"): "soc=SM1: no such ",
    ("artifacts=a", "artifacts=b", *CELL): "artifacts: is given twice",
    ("toolchain=default passes_off=[FoldQDQ]", "", *CELL): "toolchain: give either this key or qnn, executorch, "
    "passes_off, operators_skipped, on both sides",
    ("scheme=fp16", "scheme=8a8w", "model=digits_cnn", "soc=SM8350"): "BAD: impossible: ",
    ("qnn=9.9", "", *CELL): "qnn=9.9: no such release; one of 2.47, 2.48, 2.49, 2.50, 2.51, onnxruntime-qnn==VERSION, "
    "or the path of a Qualcomm AI Engine Direct SDK",
    ("executorch=/nowhere@main", "", *CELL): "executorch=/nowhere@main: there is no such folder",
    ("executorch=CLONE@absent", "", *CELL): "executorch=CLONE@absent: the clone has no such commit; `git -C CLONE "
    "fetch` may bring it",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_request_is_one_line(clone: SmallClone, words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        parsed([word.replace("CLONE", str(clone.folder)) for word in words], [])
    assert str(caught.value).startswith(WRONG[words].replace("CLONE", str(clone.folder)))
    assert "\n" not in str(caught.value)


def test_a_folder_of_the_users_own_options_is_used(tmp_path: Path) -> None:
    (tmp_path / "scheme").mkdir()
    (tmp_path / "scheme" / "mine.yaml").write_text("name: mine\nprecision: quantized\nquant_dtype: 8a8w\n")
    bisection = parsed(["scheme=8a8w,mine", "model=digits_cnn"], [tmp_path])
    assert [point.plan([tmp_path]).cells[0].request.scheme.name for point in bisection.points] == ["8a8w", "mine"]
