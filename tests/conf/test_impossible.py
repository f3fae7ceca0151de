"""The rules for impossible cells, and their reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnsweep.conf.backends import planned_backend
from qnnsweep.conf.load import load
from qnnsweep.conf.names import SHIPPED_BACKENDS

SCHEMES = "fp32,fp16,fp16a8w,16a16w,16a8w,16a4w,16a4w_block,8a8w,8a4w,16a2w"
NO_FLOAT32 = "the HTP computes no 32-bit float graphs; ask for fp16, or for backend=xnnpack or portable"
NO_FLOAT16 = "Hexagon v68 computes no 16-bit float; v69 or newer does"
WIDE = "16-bit by 16-bit and 2-bit weights need Hexagon v73 or newer"
BLOCKS = "block quantization (LPBQ) needs Hexagon v73 or newer: older ones compute wrong results"
BEFORE_V73 = {"fp32": NO_FLOAT32, "16a16w": WIDE, "16a2w": WIDE, "16a4w_block": BLOCKS}


def impossible(mine: Path, *overrides: str) -> dict[str, str]:
    plan = load(["model=my_net", f"scheme={SCHEMES}", *overrides], config_dirs=[mine])
    assert len(plan.cells) == 10
    return {cell.request.scheme.name: cell.impossible for cell in plan.cells if cell.impossible}


@pytest.mark.parametrize(
    ("soc", "reasons"),
    [
        ("SM8350", BEFORE_V73 | {"fp16": NO_FLOAT16, "fp16a8w": NO_FLOAT16}),
        ("SM8450", BEFORE_V73),
        ("SM8550", {"fp32": NO_FLOAT32}),
        ("SM8850", {"fp32": NO_FLOAT32}),
    ],
)
def test_the_htp_refuses_schemes_by_its_architecture(mine: Path, soc: str, reasons: dict[str, str]) -> None:
    assert impossible(mine, f"soc={soc}") == reasons


def test_xnnpack_accepts_two_schemes_on_any_soc(mine: Path) -> None:
    refused = dict.fromkeys(SCHEMES.split(","), "the xnnpack backend accepts fp32 and 8a8w only")
    assert impossible(mine, "backend=xnnpack", "soc=SM8350") == {
        scheme: reason for scheme, reason in refused.items() if scheme not in ("fp32", "8a8w")
    }


def test_the_portable_backend_accepts_one_scheme(mine: Path) -> None:
    assert impossible(mine, "backend=portable").keys() == set(SCHEMES.split(",")) - {"fp32"}


def test_a_rule_depends_on_a_schemes_arithmetic_not_on_its_name(mine: Path) -> None:
    overrides = ["model=my_net", "scheme=16a16w", "scheme.name=8a8w", "soc=SM8450"]
    assert load(overrides, config_dirs=[mine]).cells[0].impossible == WIDE


def test_every_rule_has_a_reason_of_one_line_and_evidence() -> None:
    rules = [rule for kind in SHIPPED_BACKENDS for rule in planned_backend(kind).rules]
    assert len(rules) == 6
    assert all(rule.reason.isprintable() and rule.reason and rule.evidence for rule in rules)


def test_limits_of_the_compiler_can_be_tried_and_limits_of_the_options_cannot(mine: Path) -> None:
    assert impossible(mine, "soc=SM8350", "try_impossible=true") == {"fp32": NO_FLOAT32}
    xnnpack = ("soc=SM8350", "backend=xnnpack")
    assert impossible(mine, *xnnpack, "try_impossible=true") == impossible(mine, *xnnpack)
