"""What a report must show, and what it must never let through."""

from __future__ import annotations

import io
import json
import math
import random
import re
import time
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from tasks.records import Toolchain
from tasks.report import RunFacts, render, summary_markdown, summary_table
from tasks.storage.tables import TABLES

RUN = RunFacts(
    run_id="20261121T0230Z-4f1c",
    started="2026-11-21T02:30:11+00:00",
    seconds=2_731.4,
    command=("qnnsweep", "run", "model=efficientnet_lite0,minilm_l6,digits", "scheme=8a8w,16a8w,fp16", "soc=a,b c"),
    toolchain_calls=21,
    reused=9,
    toolchain=Toolchain(python="3.11.7", torch="2.13.0", executorch="1.5.1", torchao="0.18.0", qnn="v2.49.40.260701"),
    tables="artifacts/tables",
    report="artifacts/reports/20261121T0230Z-4f1c/report.html",
)
LOG = "0" * 63 + "a"
HOSTILE = ("</script><script>alert(1)</script>", "a|b\nc")
TARGETS = ("aten.convolution.default", "aten.hardtanh.default", "aten.add.Tensor", "aten.constant_pad_nd.default")


def table(name: str, rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as they come back from Parquet, in the table's own schema: what is not given is null."""
    columns = TABLES[name].names
    complete = [{column: row.get(column) for column in columns} for row in rows]
    return pa.Table.from_pylist(complete, schema=TABLES[name]).to_pandas()


def cell(model: str, scheme: str, soc: str, **facts: Any) -> dict[str, Any]:
    place = {"run_id": RUN.run_id, "model": model, "scheme": scheme, "soc": soc, "device": "local", "backend": "qnn"}
    return place | {"outcome": "passed", "stage": "compare", "log": LOG} | facts


def measured(chance: random.Random, snr: float) -> dict[str, Any]:
    return {
        "weights": "pretrained",
        "export_s": 4.1,
        "quantize_s": chance.uniform(5, 9),
        "lower_s": chance.uniform(40, 90),
        "execute_s": chance.uniform(1, 7),
        "pte_bytes": chance.randrange(4_000_000, 9_000_000),
        "debug_pte_bytes": 9_412_608,
        "delegated_nodes": 148,
        "non_delegated_nodes": 2,
        "delegated_subgraphs": 1,
        "spill_bytes": 0,
        "fill_bytes": 0,
        "write_total_bytes": 301_056,
        "read_total_bytes": 5_771_264,
        "operators_total": 80,
        "operators_compared": 71,
        "samples": 8,
        "final_snr_db": snr,
        "final_cosine": 1 - 10 ** (-snr / 10) / 2,
        "final_max_abs": chance.uniform(0.01, 0.5),
        "top1_agreement": 1.0 if snr > 20 else 0.875,
        "latency_p50_ms": chance.uniform(0.8, 9),
        "worst_operator": "aten_convolution_default_21",
    }


def operators(place: dict[str, Any], count: int, chance: random.Random) -> Iterable[dict[str, Any]]:
    for index in range(count):
        target = TARGETS[index % len(TARGETS)]
        compared = index % 9 != 4
        snr = 70 - 0.4 * index + chance.gauss(0, 4) - (60 if index == 21 and place["scheme"] == "8a8w" else 0)
        yield place | {
            "operator_index": index,
            "operator": f"{target.replace('.', '_')}_{index}" if index != 21 else "aten_convolution_default_21",
            "target": target,
            "debug_handle": index + 1 if compared else None,
            "output_index": 0,
            "module_path": f"features.{index // 8}.block.{index % 8}",
            "stack_trace": f'File "/site-packages/net.py", line {index}, in forward\n    x = self.features[{index}](x)',
            "shape": [1, 32, 112 >> (index // 24), 112 >> (index // 24)],
            "dtype": "uint16" if place["scheme"] == "16a8w" else "uint8",
            "delegated": index > 1,
            "reference": "edge",
            "sample": 0,
            "status": "compared" if compared else ("masked", "constant", "not_dumped")[index // 9 % 3],
            "mse": chance.random() * 1e-5 if compared else None,
            "mean_abs": chance.random() * 1e-3 if compared else None,
            "max_abs": chance.random() if compared else None,
            "snr_db": snr if compared else None,
            "cosine": 1 - chance.random() * 1e-4 if compared else None,
        }


def evidence(place: dict[str, Any], final: float, chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    rungs = {"exported": 138.2, "quantized": final + 4, "edge": final + 4, "device": final}
    outputs = [
        place
        | {"rung": rung, "reference": "eager", "sample": sample, "sample_name": f"flower-{sample}", "output": "logits"}
        | {"output_index": 0, "shape": [1, 1000], "status": "compared", "snr_db": snr + abs(chance.gauss(0, 2))}
        | {"max_abs": chance.random(), "cosine": 0.999, "top1_reference": 985, "top1_actual": 985 - (snr < 15)}
        for rung, snr in rungs.items()
        for sample in range(8)
    ]
    profile = [
        place
        | {"event": f"aten_convolution_default_{index}:OpId_{index} (cycles)", "unit": "cycles", "count": 8}
        | {"delegate": True, "p10": 90.0 * index, "p50": 100.0 * index, "p90": 120.0 * index, "mean": 101.0 * index}
        for index in range(40)
    ]
    delegation = [
        place | {"operator": target, "occurrences_delegated": 20, "occurrences_not_delegated": 0, "refusals": []}
        for target in TARGETS
    ]
    delegation[2] |= {"occurrences_not_delegated": 2, "refusals": ["[ERROR] Op add: rank 6 is not supported by HTP"]}
    argv = ["python", "-m", "tasks.devices.runner", "--model_path", "program.pte", "--iteration", "10"]
    commands = [place | {"argv": argv, "exit_code": 0, "seconds": 2.31}]
    return {"outputs": outputs, "profile": profile, "delegation": delegation, "commands": commands}


def sweep(cells: list[dict[str, Any]], count: int = 80) -> dict[str, pd.DataFrame]:
    chance = random.Random(7)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for one in cells:
        place = {name: one[name] for name in ("run_id", "model", "scheme", "soc", "device", "backend")}
        rows["cells"].append(one)
        if one.get("final_snr_db") is not None:
            rows["operators"].extend(operators(place, count, chance))
            for name, found in evidence(place, one["final_snr_db"], chance).items():
                rows[name].extend(found)
    return {name: table(name, found) for name, found in rows.items()}


def nightly() -> list[dict[str, Any]]:
    """Three models × three schemes × three SoCs with one of each way to go wrong."""
    chance = random.Random(3)
    cells: list[dict[str, Any]] = []
    base = {"fp16": 61.0, "16a8w": 38.0, "8a8w": 23.0}
    for model in ("efficientnet_lite0", "minilm_l6", "digits"):
        for scheme, snr in base.items():
            for soc in ("SM8550", "SM8650", "SM8850"):
                final = snr + chance.uniform(-3, 3) - (9.5 if (model, scheme) == ("minilm_l6", "8a8w") else 0)
                cells.append(cell(model, scheme, soc, **measured(chance, final)))
    for one in cells:
        if (one["model"], one["scheme"]) == ("minilm_l6", "8a8w"):
            reason = f"final_snr_db {one['final_snr_db']:.1f} is below 20.0 (tolerance default)"
            one |= {"outcome": "out_of_tolerance", "reason": reason}
        if one["model"] == "digits":
            one |= {"accuracy": 0.96875, "accuracy_eager": 0.984375, "weights": "trained"}
    nothing = dict.fromkeys(measured(chance, 1.0))
    for number in (3, 4, 5):
        reason = "16a8w needs 16-bit activations in every layer_norm, which v73 lacks; ask for 8a8w or fp16"
        cells[9 + number] |= nothing | {"outcome": "impossible", "stage": "plan", "reason": reason, "log": None}
    message = (
        "[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:217: Graph prepare failed: 0x3ea\n"
        "lower stopped with SIGABRT after 41.2 s. The last lines of its log are above; see the cell's log for the rest."
    )
    for number in (0, 2):
        failed = {"stage": "lower", "outcome": "failed", "error_type": "ToolchainError", "error": message}
        cells[number] |= nothing | failed | {"export_s": 4.1, "quantize_s": 7.7, "weights": "pretrained"}
    lost = "adb: device 'R5CT20' offline after 2 of 3 attempts; reconnect it and run `qnnsweep devices`"
    cells[26] |= nothing | {"stage": "deploy", "outcome": "infrastructure", "error_type": "DeviceError", "error": lost}
    return cells


LOGS = {LOG: "\x1b[31m[WARN]\x1b[0m observers saw 32 samples\n" + "lowering <forward> & friends\n" * 200}


class Page(HTMLParser):
    """Everything in a page that could load, run or lead somewhere; its visible text; its JSON."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: list[Any] = []
        self.ids: set[str] = set()
        self._raw: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.ids |= {identifier for identifier in [attributes.get("id")] if identifier}
        self._raw = (attributes.get("type") or tag) if tag in {"script", "style"} else None

    def handle_endtag(self, tag: str) -> None:
        self._raw = None

    def handle_data(self, data: str) -> None:
        if self._raw == "application/json":
            self.data.append(json.loads(data))
        elif self._raw is None:
            self.text.append(data)


@pytest.fixture(scope="module")
def html() -> str:
    return render(RUN, sweep(nightly()), LOGS)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_matrix_facts_and_errors_are_there_without_the_script(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    assert "9 of 27 cells did not pass" in text
    assert "2 failed" in text
    assert "graph_prepare.cc:217: Graph prepare failed: 0x3ea" in text
    assert "16a8w needs 16-bit activations in every layer_norm" in text
    assert "96.9 / 98.4" in text
    assert "lowering <forward> & friends" in text


def test_every_matrix_link_leads_to_a_cell(page: Page) -> None:
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {link[1:] for link in links if link} == {f"cell-{number}" for number in range(27)} | {"matrix"}
    assert {link[1:] for link in links if link} <= page.ids


def test_nothing_is_loaded_from_anywhere(html: str, page: Page) -> None:
    references = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in {"src", "srcset", "href", "xlink:href", "action", "data", "poster"} and value is not None
    ]
    assert [value for value in references if not value.startswith("#")] == []
    assert [word for word in ("http://", "https://", "@import", "url(", "fetch(") if word in html] == []
    assert {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "base"} == set()


def test_only_the_reports_own_script_may_run(page: Page) -> None:
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert [a.get("type") for tag, a in page.tags if tag == "script"].count(None) == 1


def test_the_data_for_the_script_holds_every_operator(page: Page) -> None:
    drawn = [data["operators"]["rows"] for data in page.data if isinstance(data, dict)]
    assert drawn == [80] * 21


def test_numbers_for_the_script_keep_six_digits_and_infinity(page: Page) -> None:
    exact = cell("m", "s", "c", final_snr_db=math.inf, top1_agreement=1.0)
    tables = sweep([exact], count=0) | {
        "operators": table(
            "operators", [exact | {"operator": "add", "status": "exact", "snr_db": math.inf, "mse": 1.23456789e-9}]
        )
    }
    data = Page(render(RUN, tables, {})).data[0]["operators"]
    assert (data["snr_db"], data["mse"], data["max_abs"]) == ("Infinity", 1.23457e-09, None)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_appears_only_escaped(name: str) -> None:
    hostile = cell(name, name, name, **measured(random.Random(1), 30.0))
    hostile |= {"device": name, "outcome": "failed", "error": name, "error_type": name, "reason": name, "stage": name}
    tables = sweep([hostile], count=3)
    tables["operators"]["operator"] = name
    facts = {field: getattr(RUN, field) for field in RUN.__dataclass_fields__}
    run = RunFacts(**facts | {"run_id": name, "command": (name,), "tables": name, "report": name})

    html = render(run, tables, {LOG: name})
    assert "<script>alert" not in html
    assert [tag for tag, _ in Page(html).tags].count("script") == 3
    assert name in Page(html).data[-1]

    markdown = summary_markdown(run, tables["cells"])
    assert "<script>" not in markdown.replace("\\<", "")
    assert "a|b" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in rows] == [12] * 3


def test_a_long_log_is_shown_by_its_end_and_says_so() -> None:
    log = "first line\n" + "x" * 99 + "\n" + "another line\n" * 10_000 + "last line"
    text = "".join(Page(render(RUN, sweep(nightly()[:2]), {LOG: log})).text)
    assert "first line" not in text
    assert "last line" in text
    assert "characters before this are left out" in text


def test_an_empty_run_is_a_report_too() -> None:
    nothing = table("cells", [])
    assert "Nothing was planned" in render(RUN, {"cells": nothing}, {})
    assert "0 cells: nothing planned." in summary_markdown(RUN, nothing)
    assert summary_table(RUN, nothing).row_count == 0


def test_devices_and_backends_are_columns_only_where_they_differ() -> None:
    one = [cell("m", "fp16", "SM8650"), cell("m", "fp16", "SM8550")]
    two = [cell("m", "fp16", "SM8650"), cell("m", "fp16", "SM8650") | {"device": "bench-3", "backend": "xnnpack"}]
    heads = [[str(column.header) for column in summary_table(RUN, table("cells", rows)).columns] for rows in (one, two)]
    numbers = ["SNR dB", "top-1 %", "pte KiB", "operators", "delegated / CPU", "lower s"]
    assert heads[0] == ["model", "scheme", "soc", "outcome", *numbers, "note"]
    assert heads[1] == ["model", "scheme", "soc", "device", "backend", "outcome", *numbers, "note"]


def test_the_terminal_table_shows_rounded_numbers_and_dashes_for_null() -> None:
    rows = [
        cell(
            "[red]m",
            "8a8w",
            "SM8650",
            **measured(random.Random(1), 23.449) | {"lower_s": 57.04, "pte_bytes": 5_242_880},
        ),
        cell("m", "fp16", "SM8650", outcome="failed", stage="lower", error_type="ToolchainError", error="died\nlater"),
    ]
    written = io.StringIO()
    Console(file=written, width=200).print(summary_table(RUN, table("cells", rows)))
    lines = [re.split(r"\s{2,}", line.strip()) for line in written.getvalue().splitlines()]
    body = [line for line in lines if line[0] in {"[red]m", "m"}]
    assert body == [
        ["[red]m", "8a8w", "SM8650", "✓ passed", "23.4", "100.0", "5,120", "71/80", "148/2", "57.0"],
        ["m", "fp16", "SM8650", "✗ failed", *"––––––", "ToolchainError: died"],
    ]


def test_a_narrow_terminal_wraps_but_drops_no_number_and_no_note() -> None:
    one = cell("efficientnet_lite0", "16a8w", "SM8650", **measured(random.Random(1), 11.94), reason="below 20.0 dB")
    written = io.StringIO()
    Console(file=written, width=100).print(summary_table(RUN, table("cells", [one | {"outcome": "out_of_tolerance"}])))
    body = written.getvalue()
    assert [word for word in ("SM8650", "11.9", "87.5", "71/80", "148/2", "below") if word not in body] == []


def test_markdown_has_the_worst_cells_first() -> None:
    lines = summary_markdown(RUN, table("cells", nightly())).splitlines()
    body = [line.split(" | ") for line in lines if line.startswith("| ")][2:]
    outcomes = ["✗ failed"] * 2 + ["! infrastructure"] + ["≠ out of tolerance"] * 3 + ["∅ impossible"] * 3
    assert [row[3] for row in body] == outcomes + ["✓ passed"] * 18
    assert lines[2].startswith("27 cells: 2 failed, 1 infrastructure, 3 out of tolerance, 3 impossible, 18 passed.")
    assert "Report: artifacts/reports/20261121T0230Z-4f1c/report.html" in lines[6]


def test_five_hundred_cells_stay_below_ten_megabytes_and_seconds() -> None:
    chance = random.Random(5)
    cells = [
        cell(f"model_{number // 25}", f"scheme_{number // 5 % 5}", f"SM{number % 5}", **measured(chance, 30.0))
        for number in range(500)
    ]
    tables, logs = sweep(cells, count=100), {LOG: "<warning> & so on\n" * 20_000}
    started = time.perf_counter()
    html = render(RUN, tables, logs)
    assert len(html.encode()) < 10_000_000
    assert time.perf_counter() - started < 30
