"""The time of each module of the hierarchy, from its operators' events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qnnsweep.tasks.numerics.modules import module_times
from qnnsweep.tasks.numerics.timing import Spread, spread
from qnnsweep.tasks.records import ModuleTime, Operator, ProfiledEvent


def operator(name: str, module: str) -> Operator:
    return Operator(
        index=0, name=name, target="", debug_handle=None, output_index=0, source_nodes=(), module_path=module,
        stack_trace="", shape=None, dtype=None, quantization=None, axis_order=None, subgraph=0, constant=False,
        unused=False,
    )  # fmt: skip


def event(node: str | None, raw: tuple[float, ...], *paths: str, **changes: Any) -> ProfiledEvent:
    counted = ProfiledEvent(
        program="profile", same_outputs=True, event_block="Execute", name=f"{node} (cycles)", kind="operator",
        node=node, instruction=0, unit="cycles", raw=raw, inferences=tuple(range(len(raw))),
        samples=tuple(range(len(raw))), debug_handles=(), backend="QnnBackend", subgraph=0,
        operators=tuple(operator(f"{node}_{path}", path) for path in paths), counted_in=(),
    )  # fmt: skip
    return replace(counted, **changes)


def total(path: str, times: Spread | None, own_mean: float | None, share: float | None, *operators: str) -> ModuleTime:
    return ModuleTime(
        program="profile", unit="cycles", module_path=path, depth=len(path.split(".")) if path else 0,
        operators=operators, spread=times, own_mean=own_mean, share=share, counted_in=None,
    )  # fmt: skip


def test_a_module_has_the_time_of_all_modules_inside_it_and_its_own() -> None:
    events = [
        event("quantize", (1.0, 3.0)),
        event("conv", (10.0, 20.0), "stem.conv"),
        event("head", (4.0, 2.0), "head"),
        event("scale", (5.0, 5.0), "stem"),
    ]
    assert module_times(events) == (
        total("", spread((20.0, 30.0)), 2.0, 1.0, "conv_stem.conv", "head_head", "scale_stem"),
        total("head", spread((4.0, 2.0)), 3.0, 6 / 50, "head_head"),
        total("stem", spread((15.0, 25.0)), 5.0, 40 / 50, "conv_stem.conv", "scale_stem"),
        total("stem.conv", spread((10.0, 20.0)), 15.0, 30 / 50, "conv_stem.conv"),
    )


def test_fused_operators_are_counted_in_the_module_that_contains_all_of_them() -> None:
    events = [event("conv", (0.0,), "block.conv", counted_in=("relu",)), event("relu", (7.0,), "block.act")]
    rows = {row.module_path: row for row in module_times(events)}
    assert list(rows) == ["", "block", "block.act", "block.conv"]
    assert (rows["block"].own_mean, rows["block"].operators) == (7.0, ("conv_block.conv", "relu_block.act"))
    for path in ("block.act", "block.conv"):
        row = rows[path]
        assert (row.spread, row.own_mean, row.share, row.counted_in) == (None, None, None, "block")


def test_work_that_may_be_counted_in_several_operators_moves_to_no_other_module() -> None:
    events = [event("split", (0.0,), "a", counted_in=("left", "right")), event("left", (7.0,), "b")]
    rows = {row.module_path: row.spread for row in module_times(events)}
    assert rows == {"": spread((7.0,)), "a": spread((0.0,)), "b": spread((7.0,))}


def test_a_delegate_call_belongs_to_the_module_that_contains_all_of_its_operators() -> None:
    call = {"kind": "delegate_call", "unit": "us"}
    rows = module_times([event(None, (9.0,), "body.0", "body.1.conv", **call)])
    assert [(row.module_path, row.own_mean, row.counted_in) for row in rows] == [
        ("", 0.0, None),
        ("body", 9.0, None),
        ("body.0", None, "body"),
        ("body.1", None, "body"),
        ("body.1.conv", None, "body"),
    ]


def test_loading_totals_and_counters_belong_to_no_module() -> None:
    assert (
        module_times(
            [
                event("load", (9.0,), kind="program", unit="us"),
                event("load", (9.0,), kind="kernel", unit="us", inferences=()),
                event("total", (9.0,), kind="accelerator"),
                event("call", (9.0,), kind="operator_call", unit="us"),
            ]
        )
        == ()
    )
