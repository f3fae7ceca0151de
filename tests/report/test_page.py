"""Tests the contents of a report, and that hostile names are escaped."""

from __future__ import annotations

import base64
import gzip
import json
import math
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.report import data
from qnnsweep.tasks.report.format import milliseconds
from qnnsweep.tasks.report.glossary import GLOSSARY
from qnnsweep.tasks.report.page import render, summary_markdown
from qnnsweep.tasks.report.terminal import summary_table
from qnnsweep.tasks.storage.tables import schema_of
from tests.sample_tables import LOG, LOGS, RUN, cell, measured, nightly, sweep, table, trends

BOUNDS = {"low": 0.125, "high": 0.875}
HOSTILE = ("</script><script>alert(1)</script>", "a|b\nc")


class Page(HTMLParser):
    """A parsed page: its tags, ids, visible text and JSON."""

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
        elif self._raw == "application/gzip":
            shared = json.loads(gzip.decompress(base64.b64decode(data)))
            self.data = [*shared["cells"], *self.data, shared]
        elif self._raw is None:
            self.text.append(data)


def facts_of(html: str) -> dict[str, str]:
    """Return the facts of a page's cells by their names."""
    facts = re.findall(r"<dt>(.*?)</dt><dd.*?>(.*?)</dd>", html[: html.index('id="glossary"')])
    return {re.sub("<.*?>", "", name): re.sub("<.*?>", "", value) for name, value in facts}


@pytest.fixture(scope="module")
def html() -> str:
    return render(RUN, sweep(nightly()), LOGS)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_matrix_facts_and_errors_need_no_script(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    assert "6 of 24 possible cells did not pass" in text
    assert "2 failed" in text
    assert "graph_prepare.cc:217: Graph prepare failed: 0x3ea" in text
    assert "16a8w needs 16-bit activations in every layer_norm" in text
    assert "96.9 / 98.4" in text
    assert "lowering <forward> & friends" in page.data[0]["log"]


def test_every_matrix_link_leads_to_a_cell(page: Page) -> None:
    targets = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
    links = {link[1:] for link in targets if link.startswith("#")}
    assert {link for link in links if link.count("-") == 1} == {f"cell-{number}" for number in range(27)}
    assert "cell-0-log" in links
    assert "matrix" in links
    assert links - page.ids == set()


def test_the_page_loads_nothing(html: str, page: Page) -> None:
    references = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in {"src", "srcset", "href", "xlink:href", "action", "data", "poster"} and value is not None
    ]
    links = [value for value in references if not value.startswith("#")]
    assert [value for value in links if not value.startswith("files/")] == []
    assert links[0] == "files/efficientnet_lite0/fp16/SM8650/qnn/local/program.pte"
    assert [word for word in ("http://", "https://", "@import", "url(", "fetch(") if word in html] == []
    assert {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "base"} == set()


def test_only_the_reports_own_script_may_run(page: Page) -> None:
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert [a.get("type") for tag, a in page.tags if tag == "script"].count("module") == 1


def test_the_data_for_the_script_holds_every_operator(page: Page) -> None:
    counts = [data["operators"]["rows"] for data in page.data if "operators" in data]
    assert counts == [80] * 21


def test_numbers_for_the_script_keep_six_digits_and_infinity(page: Page) -> None:
    exact = cell("m", "s", "c", final_snr_db=math.inf, top1_agreement=1.0)
    tables = sweep([exact], count=0) | {
        "operators": table(
            "operators", [exact | {"operator": "add", "status": "exact", "snr_db": math.inf, "mse": 1.23456789e-9}]
        )
    }
    data = Page(render(RUN, tables, {})).data[0]["operators"]
    assert (data["snr_db"], data["mse"], data["max_abs"]) == ("Infinity", 1.23457e-09, None)


def test_the_long_tables_have_columns_and_formats_that_exist() -> None:
    derived = {"took_p50", "took_unit", "counted_in"}
    script = Path(data.__file__).with_name("tables.js").read_text()
    formats = set(re.findall(r"\w+", re.findall(r"const FORMATS = \{(.*)\}", script)[0]))
    for name, views in data.VIEWS.items():
        assert {view.column for view in views} <= {*schema_of(name).names, *derived}
        assert {view.format for view in views} <= formats


def test_columns_that_cells_share_are_in_the_page_once(page: Page) -> None:
    shared = page.data[-1]
    columns = {data["operators"]["@$operator"] for data in page.data if "operators" in data}
    assert len(columns) == 1
    names = [shared["strings"][text] for text in shared["columns"][columns.pop()]]
    assert (names[:2], names[21], len(names)) == (
        ["aten_convolution_default_0", "aten_hardtanh_default_1"], "aten_convolution_default_21", 80,
    )  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_appears_only_escaped(name: str) -> None:
    hostile = cell(name, name, name, **measured(random.Random(1), 30.0))
    hostile |= {"device": name, "outcome": "failed", "error": name, "error_type": name, "reason": name, "stage": name}
    tables = sweep([hostile], count=3)
    tables["operators"] = [row | {"operator": name} for row in tables["operators"]]
    bad = {"series": name, "operator": name, "unit": name, "first_bad_run": name, "verdict": "regressed"}
    tables["trends"] = [row | bad | {"changed": [name]} for row in trends([hostile])]
    facts = {field: getattr(RUN, field) for field in RUN.__dataclass_fields__}
    run = RunFacts(**facts | {"run_id": name, "command": (name,), "tables": name, "report": name})

    html = render(run, tables, {LOG: name})
    assert "<script>alert" not in html
    assert [tag for tag, _ in Page(html).tags].count("script") == 3
    assert name in Page(html).data[-1]["strings"]

    markdown = summary_markdown(run, tables["cells"])
    assert "<script>" not in markdown.replace("\\<", "")
    assert "a|b" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in rows] == [12] * 3


def test_only_the_end_of_a_long_log_is_shown_with_a_remark() -> None:
    log = "first line\n" + "x" * 99 + "\n" + "another line\n" * 10_000 + "last line"
    text = "".join(Page(render(RUN, sweep(nightly()[:2]), {LOG: log})).text)
    assert "first line" not in text
    assert "last line" in text
    assert "The part before this is left out" in text


def test_an_empty_run_has_a_report() -> None:
    nothing = table("cells", [])
    assert "Nothing was planned" in render(RUN, {"cells": nothing}, {})
    assert "0 cells: nothing planned." in summary_markdown(RUN, nothing)
    assert summary_table(RUN, nothing).rows == []


def test_devices_and_backends_are_columns_only_where_they_differ() -> None:
    same = [cell("m", "fp16", "SM8650"), cell("m", "fp16", "SM8550")]
    different = [cell("m", "fp16", "SM8650"), cell("m", "fp16", "SM8650") | {"device": "bench-3", "backend": "xnnpack"}]
    heads = [summary_table(RUN, table("cells", rows)).columns for rows in (same, different)]
    numbers = ["lowest SNR dB", "top-1 %", "pte KiB", "operators", "delegated / CPU", "lower s"]
    assert heads[0] == ["model", "scheme", "soc", "outcome", *numbers]
    assert heads[1] == ["model", "scheme", "soc", "device", "backend", "outcome", *numbers]


@pytest.mark.parametrize(
    ("difference", "snr_db", "text"),
    [("finite", 23.449, "23.4"), ("none", None, "∞"), ("infinite", None, "-∞"), (None, None, "–")],
)
def test_an_snr_that_is_null_is_shown_as_equal_as_infinitely_noisy_or_as_unknown(
    difference: str | None, snr_db: float | None, text: str
) -> None:
    facts = {"final_difference": difference, "final_snr_db": snr_db, "samples": 8, "observer_effect": difference}
    rows = table("cells", [cell("m", "s", "c", **facts, observer_effect_snr_db=snr_db)])
    lines = summary_markdown(RUN, rows).splitlines()
    assert lines[-1].split(" | ")[5] == text
    facts = facts_of(render(RUN, {"cells": rows}, {}))
    assert facts["lowest final SNR, dB"] == facts["observer effect, dB"] == text


@pytest.mark.parametrize(
    ("cause", "words", "stage"),
    [("weights", "rounding of the weights", "quantize"), ("device", "arithmetic of the device", "execute")],
)
def test_a_cell_begins_with_the_worst_operator_its_module_the_cause_and_its_stage(
    cause: str, words: str, stage: str
) -> None:
    tables = sweep([cell("m", "s", "c", **measured(random.Random(1), 30.0))])
    (name, module), *_ = [(row["operator"], row["module_path"]) for row in tables["operators"] if row["module_path"]]
    tables["cells"] = [row | {"worst_operator": name, "worst_operator_cause": cause} for row in tables["cells"]]
    html = render(RUN, tables, {})
    begin = html[html.index("<article") : html.index('class="diagnosis"')]
    assert re.sub(r"<[^>]*>", "", begin[begin.index('class="culprit"') :]).split("\n")[1:5] == [
        f"worst operator{name}", f"its module{module}", f"its cause of error{words}", f"stage of this cause{stage}",
    ]  # fmt: skip


def test_a_cell_begins_with_its_diagnosis_and_then_has_the_reason() -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0)) | {"diagnosis": "D < 30 dB.", "reason": "below 40 dB"}
    html = render(RUN, sweep([row | {"outcome": "out_of_tolerance"}]), {})
    article = html[html.index("<article") :]
    assert [article.index(part) for part in ("D &lt; 30 dB.", "below 40 dB", 'class="facts"')] == sorted(
        article.index(part) for part in ("D &lt; 30 dB.", "below 40 dB", 'class="facts"')
    )


def test_the_command_of_a_diagnosis_is_code_with_the_folders_of_the_run() -> None:
    row = cell("m", "8a8w", "SM8650", **measured(random.Random(1), 20.0)) | {
        "diagnosis": "2 < 3. Next: `qnnsweep repair model=m`."
    }
    run = replace(RUN, command=("qnnsweep", "run", "--config-dir=my_nets", "model=m"))
    command = "2 &lt; 3. Next: <code>qnnsweep repair --config-dir=my_nets model=m</code>."
    assert command in render(run, sweep([row]), {})


def test_a_diagnosis_that_repeats_the_reason_is_shown_once() -> None:
    row = cell("m", "s", "c", outcome="impossible", reason="no fp16 there", diagnosis="no fp16 there")
    html = render(RUN, {"cells": table("cells", [row])}, {})
    article = html[html.index("<article") :]
    assert article.count("no fp16 there") == 1


def test_a_page_has_the_budget_or_the_reason_why_it_has_none() -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0))
    tables = sweep([row])
    with_budget = Page(render(RUN, tables, {}))
    assert [a.get("data-left-out") for _, a in with_budget.tags if a.get("class") == "budget"] == ["40"]
    assert with_budget.data[0]["budget"]["rows"] == 9 + 40
    without = Page(render(RUN, tables | {"budget": []}, {}))
    assert [tag for tag, a in without.tags if a.get("class") == "budget"] == []
    assert "No error budget" in "".join(without.text)


def test_a_page_of_very_many_operators_leaves_out_their_details(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = sweep([cell("m", "s", "c", **measured(random.Random(1), 30.0))])
    assert "grid_snr_db" in str(Page(render(RUN, tables, {})).data[0]["operators"].keys())
    monkeypatch.setattr(data, "DETAILED_OPERATORS", 79)
    short = Page(render(RUN, tables, {}))
    assert "grid_snr_db" not in str(short.data[0]["operators"].keys())
    assert "some of their columns only in the table" in "".join(short.text)


def test_every_judged_value_has_its_limit_and_a_value_that_missed_it_says_so() -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0))
    facts = facts_of(render(RUN, sweep([row]), {}))
    assert (facts["lowest final SNR, dB"], facts["introduce error"]) == ("30.0 (≥ 20)", "1 (≤ 1)")
    missed = row | {"outcome": "out_of_tolerance", "final_snr_db_limit": 40.0, "missed_limits": ["final_snr_db"]}
    facts = facts_of(render(RUN, sweep([missed]), {}))
    assert (facts["lowest final SNR, dB"], facts["introduce error"]) == ("30.0 (≥ 40) missed", "1 (≤ 1)")
    unjudged = row | dict.fromkeys(("final_snr_db_limit", "top1_agreement_limit", "operators_introduced_limit"))
    facts = facts_of(render(RUN, sweep([unjudged]), {}))
    assert (facts["lowest final SNR, dB"], facts["introduce error"]) == ("30.0", "1")


@pytest.mark.parametrize(
    ("outcomes", "title"),
    [
        (["passed"], "The one cell passed"),
        (["passed", "passed"], "All 2 cells passed"),
        (["passed", "impossible"], "All 1 possible cell passed"),
        (["impossible", "impossible"], "All 2 cells are impossible"),
        (["failed", "impossible", "passed"], "1 of 2 possible cells did not pass"),
        (["failed"], "1 of 1 cell did not pass"),
    ],
)
def test_impossible_cells_do_not_count_as_cells_that_did_not_pass(outcomes: list[str], title: str) -> None:
    rows = table("cells", [cell(f"m{number}", "s", "c", outcome=outcome) for number, outcome in enumerate(outcomes)])
    assert re.findall("<h1>(.*?)</h1>", render(RUN, {"cells": rows}, {})) == [title]


def test_a_time_of_the_simulator_says_so_and_does_not_colour_the_matrix() -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0)) | {"latency_p50_ms": 12_948.8}
    on_device, in_simulator = (
        render(RUN, sweep([row | {"timed_on": timed_on}]), {}) for timed_on in ("device", "simulator")
    )
    assert facts_of(on_device)["inference time, p50"] == "12.9 s"
    assert facts_of(in_simulator)["inference time, p50, in the simulator"] == "12.9 s"
    matrices = [
        html[html.index('<table class="matrix">') : html.index("</table>")] for html in (on_device, in_simulator)
    ]
    assert ["12.9 s" in matrix for matrix in matrices] == [True, False]
    measures = [[measure["name"] for measure in Page(html).data[-2]["measures"]] for html in (on_device, in_simulator)]
    assert ["latency" in names for names in measures] == [True, False]


@pytest.mark.parametrize(
    ("ms", "text"), [(None, "–"), (0.0123, "12.3 µs"), (3.014, "3.01 ms"), (999.4, "999 ms"), (12_948.8, "12.9 s")]
)
def test_a_time_is_shown_in_the_unit_that_people_read(ms: float | None, text: str) -> None:
    assert milliseconds(ms) == text


def test_every_word_that_has_a_meaning_is_in_the_glossary(html: str, page: Page) -> None:
    words = set(re.findall(r'<button class="word"(?: data-kind="(.*?)")?(?: data-word="(.*?)")?>(.*?)</button>', html))
    words = {(kind or "term", word or text) for kind, word, text in words}
    meanings = page.data[-1]["meanings"]
    assert {("term", "worst operator"), ("rung", "designed"), ("cause", "device")} <= words
    assert [word for kind, word in words if word not in meanings[kind]] == []
    glossary = "".join(page.text)
    assert [word for words in GLOSSARY.values() for word, text in words.items() if text not in glossary] == []
    assert set(page.data[-1]["terms"].values()) <= set(meanings["term"])


def test_the_start_of_a_run_is_a_date_and_a_time_that_people_read(html: str) -> None:
    assert facts_of(html)["started"] == "2026-11-21 02:30:11 UTC"


def test_figures_over_samples_are_shown_with_their_intervals() -> None:
    shares = {f"{name}_{side}": value for name in ("top1_agreement", "accuracy") for side, value in BOUNDS.items()}
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0)) | shares | {"accuracy": 0.5, "accuracy_eager": 0.75}
    facts = facts_of(render(RUN, sweep([row]), {}))
    assert facts["SNR of the mean noise, dB"] == "31.5 (30.5 to 32.8)"
    assert facts["device against designed, dB"] == "38.0"
    assert facts["top-1 agreement, %"] == "100.0 (12.5 to 87.5) (≥ 90)"
    assert facts["accuracy device / eager, %"] == "50.0 (12.5 to 87.5) / 75.0"
    unbounded = render(RUN, sweep([row | {"mean_snr_db_high": None}]), {})
    assert "31.5 (30.5 to ∞)" in unbounded


def test_the_ladder_is_the_path_to_the_device_with_the_converted_graph_beside_it() -> None:
    row = cell("m", "s", "c", **measured(random.Random(1), 30.0))
    tables = sweep([row])
    tables["outputs"] = [
        output | ({"status": "no_value", "snr_db": None, "why": "no kernel"} if output["rung"] == "designed" else {})
        for output in tables["outputs"]
    ]
    page = render(RUN, tables, {})
    ladder = page[page.index('<table class="ladder">') : page.index("</table>", page.index('<table class="ladder">'))]
    rungs = ["eager", "exported", "lowered", "edge", "designed", "device", "quantized"]
    ladder = re.sub("<button.*?>|</button>", "", ladder)
    assert re.findall(r'<th scope="row">(.*?)</th>', ladder) == rungs
    assert re.findall(r'<tr class="beside"><th scope="row">(.*?)</th>', ladder) == ["quantized"]
    assert re.findall(r'<tr class="worst"><th scope="row">(.*?)</th>', ladder) == ["edge"]
    assert "of 8, dB" in ladder
    assert '<td title="no kernel">no_value</td>' in ladder
    assert re.findall(r'title="against (.*?)"', ladder) == ["exported", "lowered", "edge", "designed", "exported"]


def test_the_cost_of_compilation_has_the_calls_of_the_cell_and_those_that_it_shares() -> None:
    rows = [cell("m", scheme, "c", **measured(random.Random(1), 30.0)) for scheme in ("s", "t")]
    calls = [
        ("export", "m", None, None),
        ("export", "n", None, None),
        ("lower", "m", "s", "c"),
        ("lower", "m", "t", "c"),
    ]
    work = [
        {"stage": stage, "model": model, "scheme": scheme, "soc": soc, "seconds": 2.0, "peak_bytes": 3 << 20}
        for stage, model, scheme, soc in calls
    ]
    page = Page(render(RUN, sweep(rows) | {"work": table("work", work)}, {}))
    strings = page.data[-1]["strings"]
    assert page.data[0]["work"]["rows"] == 2
    stages = page.data[-1]["columns"][page.data[0]["work"]["@$stage"]]
    assert [strings[number] for number in stages] == ["export", "lower"]
