"""The overrides of a scheme: how they are written, and which of them the plan refuses before anything runs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnsweep.conf.errors import RequestError
from qnnsweep.conf.load import load, shards
from qnnsweep.conf.overrides import PATTERNS, SETTINGS, _covers, merged, settings
from qnnsweep.conf.schemes import OverridePrecision, SchemeOverride
from tests.conf.conftest import Refused

FILE = """\
name: mixed
quant_dtype: 8a8w
overrides:
  - {module: layers.*.attention, quant_dtype: 16a8w}
  - {operator: conv2d, range: [0, 6], per_channel: false}
  - {node: softmax*, precision: cpu}
"""
WRITTEN = (
    "scheme.overrides=[{module:layers.*.attention,quant_dtype:16a8w},"
    "{operator:conv2d,range:[0,6],per_channel:false},{node:softmax*,precision:cpu}]"
)
READ = [
    SchemeOverride(module="layers.*.attention", quant_dtype="16a8w"),
    SchemeOverride(operator="conv2d", range=[0.0, 6.0], per_channel=False),
    SchemeOverride(node="softmax*", precision=OverridePrecision.cpu),
]
NO_SETTING = f"nothing to change; set at least one of {', '.join(SETTINGS)}"
RANGE = "two numbers, [smallest, largest], with 0 between them or equal to one of them"
OF_A = "for the operators of module=a"
REFUSALS = {
    "{module:a,quant_dtype:8a9w}": (
        "scheme.overrides[0].quant_dtype=8a9w: no such dtype; did you mean 8a4w or 8a8w? "
        "one of 16a16w, 16a2w, 16a4w, 16a4w_block, 16a8w, 8a4w, "
        "8a8w, fp16a8w"
    ),
    "{module:a,quant_dtype:fp16a8w}": (
        "scheme.overrides[0].quant_dtype=fp16a8w: it has float activations; write scheme.overrides[0].precision=float16"
    ),
    "{module:a,observer:MinMax}": (
        "scheme.overrides[0].observer=MinMax: no such observer; did you mean MinMaxObserver? "
        "one of HistogramObserver, MinMaxObserver, "
        "MovingAverageMinMaxObserver"
    ),
    "{module:a,range:[1,2]}": f"scheme.overrides[0].range=[1.0, 2.0]: {RANGE}",
    "{module:a,range:[0]}": f"scheme.overrides[0].range=[0.0]: {RANGE}",
    "{module:a,range:[0,0]}": f"scheme.overrides[0].range=[0.0, 0.0]: {RANGE}",
    "{module:a,range:[0,inf]}": f"scheme.overrides[0].range=[0.0, inf]: {RANGE}",
    "{module:a}": f"scheme.overrides[0]: {NO_SETTING}",
    "{precision:cpu}": (
        "scheme.overrides[0]: no pattern; set module or operator or node or input or method to select operators or "
        "inputs"
    ),
    "{module:' ',precision:cpu}": "scheme.overrides[0].module= : empty; a glob, in which * is any text, or null",
    "{input:x,node:a,range:[0,1]}": (
        "scheme.overrides[0].node=a: selects operators, and input selects inputs of the model; write two overrides"
    ),
    "{input:x,symmetric:true}": (
        "scheme.overrides[0].symmetric=True: an input of the model has only a range; remove this key"
    ),
    "{input:x,range:[0,1]},{input:'*',range:[0,2]}": (
        "scheme.overrides[1].range=[0.0, 2.0]: scheme.overrides[0].range is [0.0, 1.0] for the inputs of input=x "
        "too; make the two equal, or change a pattern so that only one of them selects it"
    ),
    "{module:a,block_size:[1,16]}": "scheme.overrides[0].block_size=[1, 16]: needs quant_dtype 16a4w_block",
    "{module:a,quant_dtype:16a4w_block}": (
        "scheme.overrides[0].block_size=null: needs a shape of blocks, such as [1, 16, 1, 1], for quant_dtype "
        "16a4w_block"
    ),
    "{module:a,precision:cpu,quant_dtype:8a4w}": (
        "scheme.overrides[0].quant_dtype=8a4w: only valid for quantized operators, but precision is cpu, " + OF_A
    ),
    "{module:a,precision:float16},{module:a,range:[0,1]}": (
        "scheme.overrides[1].range=[0.0, 1.0]: only valid for quantized operators, but precision is float16, " + OF_A
    ),
    "{module:a,range:[0,6],symmetric:true}": (
        "scheme.overrides[0].range=[0.0, 6.0]: not symmetric, but symmetric is true, " + OF_A
    ),
    "{module:a,range:[0,6],observer:MinMaxObserver}": (
        "scheme.overrides[0].observer=MinMaxObserver: has no effect together with range, " + OF_A
    ),
    "{module:a,range:[0,6]},{module:a,share_clamp:true}": (
        "scheme.overrides[1].share_clamp=True: has no effect together with range, " + OF_A
    ),
    "{module:a,quant_dtype:8a4w},{module:b,quant_dtype:8a4w},{module:a,quant_dtype:16a8w}": (
        "scheme.overrides[2].quant_dtype=16a8w: scheme.overrides[0].quant_dtype is 8a4w for the operators of module=a "
        "too; make the two equal, or change a pattern so that only one of them selects it"
    ),
    "{operator:conv2d,quant_dtype:8a4w},{operator:conv2d,module:b.1,quant_dtype:16a8w}": (
        "scheme.overrides[1].quant_dtype=16a8w: scheme.overrides[0].quant_dtype is 8a4w for the operators of "
        "module=b.1, operator=conv2d too; make the two equal, or change a pattern so that only one of them selects it"
    ),
    "{module:layers.1.attention,range:[0,6]},{module:'layers.*',precision:cpu}": (
        "scheme.overrides[0].range=[0.0, 6.0]: only valid for quantized operators, but precision is cpu, for the "
        "operators of module=layers.1.attention"
    ),
}
ALLOWED = (
    "{module:layers.1,quant_dtype:8a4w},{module:layers.10,quant_dtype:16a8w}",
    "{operator:conv2d,quant_dtype:8a4w},{module:b,quant_dtype:16a8w}",  # the module may have no convolution
    "{input:x,range:[0,1]},{node:'*',range:[0,2]}",  # an input is no node
    "{operator:conv2d,module:b,quant_dtype:8a4w},{operator:conv2d,quant_dtype:8a4w,per_channel:false}",
    "{node:'conv?',quant_dtype:8a4w},{node:'c*',module:b,quant_dtype:16a8w}",
)


def test_overrides_can_be_written_in_a_file_and_on_the_command_line(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(FILE)
    for overrides in ([f"scheme={tmp_path / 'mixed.yaml'}"], ["scheme=8a8w", WRITTEN]):
        (cell,) = load(["model=my_net", "soc=SM8650", *overrides], config_dirs=[mine]).cells
        assert cell.request.scheme.overrides == READ
        assert cell.impossible is None


def test_a_scheme_file_is_an_axis_and_a_shard_like_any_other_scheme(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(FILE)
    words = ["model=my_net", "soc=SM8650", f"scheme=8a8w,{tmp_path / 'mixed.yaml'}"]
    plan = load(words, config_dirs=[mine])
    assert [(cell.request.scheme.name, cell.request.scheme.overrides) for cell in plan.cells] == [
        ("8a8w", []),
        ("mixed", READ),
    ]
    assert [load(shard, config_dirs=[mine]).cells for shard in shards(words, config_dirs=[mine])] == [
        (cell,) for cell in plan.cells
    ]


@pytest.mark.parametrize(("written", "line"), REFUSALS.items(), ids=lambda _: "")
def test_a_wrong_override_is_refused_in_one_line(refused: Refused, written: str, line: str) -> None:
    assert refused("scheme=8a8w", f"scheme.overrides=[{written}]") == f"{line} (scheme 8a8w)"


@pytest.mark.parametrize(
    ("model", "accepted"),
    [("my_net", "the model has one method, so write null"), ("tiny_llama", "one of decode, prefill")],
)
def test_an_override_of_a_method_that_the_model_lacks_is_refused(mine: Path, model: str, accepted: str) -> None:
    words = [f"model={model}", "soc=SM8650", "scheme=8a8w", "scheme.overrides=[{method:dec,precision:cpu}]"]
    with pytest.raises(RequestError) as refused:
        load(words, config_dirs=[mine])
    assert str(refused.value) == f"scheme.overrides[0].method=dec: no such method; {accepted}"
    (cell,) = load(["model=tiny_llama", *words[1:3], words[3].replace("dec", "dec*")], config_dirs=[mine]).cells
    assert cell.request.scheme.overrides == [SchemeOverride(method="dec*", precision=OverridePrecision.cpu)]


def test_an_override_of_an_input_that_the_model_lacks_is_refused(mine: Path) -> None:
    words = ["model=my_net", "soc=SM8650", "scheme=8a8w", "scheme.overrides=[{input:y,range:[0,1]}]"]
    with pytest.raises(RequestError) as refused:
        load(words, config_dirs=[mine])
    assert str(refused.value) == "scheme.overrides[0].input=y: no such input; one of x"
    assert len(load([*words, "model.inputs=[]"], config_dirs=[mine]).cells) == 1, "the first sample says the inputs"


def test_an_override_of_an_input_is_for_the_methods_that_it_selects(mine: Path) -> None:
    data = "calibration: {source: 'a.b:c'}, evaluation: {source: 'a.b:c'}"
    methods = [f"{{name: {name}, {data}, inputs: [{{name: {only}, shape: [1]}}]}}" for name, only in ("ax", "by")]
    lines = ["name: two", "factory: a.b:net", f"methods: [{', '.join(methods)}]"]
    (mine / "model" / "two.yaml").write_text("\n".join(lines))
    words = ["model=two", "soc=SM8650", "scheme=8a8w", "scheme.overrides=[{input:y,method:a,range:[0,1]}]"]
    for refused in (words, [word.replace("method:a,", "") for word in words]):
        with pytest.raises(RequestError, match=r"^scheme.overrides\[0\].input=y: no such input of a; one of x$"):
            load(refused, config_dirs=[mine])
    assert len(load([word.replace("method:a", "method:b*") for word in words], config_dirs=[mine]).cells) == 1


def test_a_range_of_a_state_is_refused(mine: Path) -> None:
    words = ["model=tiny_gru", "soc=SM8650", "scheme=8a8w", "scheme.overrides=[{input:'*',range:[-1,1]}]"]
    with pytest.raises(RequestError, match=r"is a state, whose grid is that of the output that is written to it$"):
        load(words, config_dirs=[mine])


@pytest.mark.parametrize("written", ALLOWED, ids=lambda _: "")
def test_overrides_that_may_select_different_operators_are_planned(mine: Path, written: str) -> None:
    words = ["model=my_net", "soc=SM8650", "scheme=8a8w", f"scheme.overrides=[{written}]"]
    assert len(load(words, config_dirs=[mine]).cells[0].request.scheme.overrides) == 2


@given(
    st.text("ab.*?]", min_size=1, max_size=5), st.text("ab.*?[]", min_size=1, max_size=5), st.text("ab.", max_size=5)
)
def test_a_pattern_that_covers_another_matches_all_that_the_other_matches(wider: str, other: str, text: str) -> None:
    if _covers(wider, other) and fnmatchcase(text, other):
        assert fnmatchcase(text, wider)


@pytest.mark.parametrize(("scheme", "computes"), [("fp16", "float16"), ("fp16a8w", "fp16a8w")])
def test_a_scheme_with_float_activations_has_no_overrides(refused: Refused, scheme: str, computes: str) -> None:
    assert refused(f"scheme={scheme}", "scheme.overrides=[{module:a,precision:cpu}]") == (
        "scheme.overrides: only valid for a scheme with quantized activations; this scheme computes in "
        f"{computes} (scheme {scheme})"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["soc=SM8450", "{module:a,quant_dtype:16a16w}"], "16-bit by 16-bit and 2-bit weights need Hexagon v73"),
        (["soc=SM8350", "{module:a,precision:float16}"], "Hexagon v68 computes no 16-bit float; v69 or newer does"),
        (["backend=xnnpack", "{module:a,precision:cpu}"], "the xnnpack backend has no schemes with overrides"),
    ],
    ids=lambda _: "",
)
def test_what_a_soc_or_a_backend_cannot_compute_is_impossible_in_an_override_too(
    mine: Path, words: list[str], reason: str
) -> None:
    *others, override = words
    (cell,) = load(["model=my_net", "scheme=8a8w", *others, f"scheme.overrides=[{override}]"], config_dirs=[mine]).cells
    assert (cell.impossible or "").startswith(reason)


VALUES = {
    "precision": st.sampled_from(OverridePrecision),
    "quant_dtype": st.sampled_from(["8a8w", "16a8w", "8a4w"]),
    "observer": st.sampled_from(["MinMaxObserver", "HistogramObserver"]),
    "range": st.sampled_from([[0.0, 6.0], [-1.0, 1.0]]),
    "constant_range": st.sampled_from([[0.0, 6.0], [-1.0, 1.0]]),
    "least_weight_scale": st.sampled_from([1e-6, 1e-5]),
    "fit_weights": st.booleans(),
    "symmetric": st.booleans(),
    "per_channel": st.booleans(),
    "block_size": st.sampled_from([[1, 16], [1, 32]]),
    "share_clamp": st.booleans(),
    "as_conv2d": st.booleans(),
}


@given(st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=4))
def test_the_order_of_overrides_has_no_effect_and_nothing_is_lost(values: list[dict[str, object]]) -> None:
    """Either the overrides together have every setting of each override, or both orders are refused."""
    assert {*VALUES} == {*SETTINGS}
    overrides = [SchemeOverride(module="a", **settings) for settings in values]  # type: ignore[arg-type]
    results: list[SchemeOverride | None] = []
    for order in (range(len(overrides)), reversed(range(len(overrides)))):
        try:
            results.append(merged(overrides, list(order), "x"))
        except RequestError:
            results.append(None)
    assert results[0] == results[1]
    if results[0] is None:
        return
    assert all(getattr(results[0], pattern) is None for pattern in PATTERNS)
    assert all(settings(override).items() <= settings(results[0]).items() for override in overrides)
