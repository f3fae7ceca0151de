"""A run as JUnit XML, which CI systems such as Jenkins and GitLab read: a suite per model, and a test case per cell."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from xml.etree import ElementTree

from qnnsweep.tasks.records import RunFacts
from qnnsweep.tasks.records.tables import Row
from qnnsweep.tasks.records.vocabulary import Outcome
from qnnsweep.tasks.report.counts import cell_key, count
from qnnsweep.tasks.report.formats import cells as of

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS: dict[Outcome, str] = {
    "out_of_tolerance": "failure",
    "failed": "error",
    "infrastructure": "error",
    "impossible": "skipped",
}
_PROPERTIES = (
    "final_snr_db",
    "device_snr_db",
    "top1_agreement",
    "accuracy",
    "operators_introduced",
    "worst_operator",
    "pte_bytes",
    "latency_p50_ms",
    "timed_on",
)
"""The columns of the table `cells` that become properties of a test case."""


def junit(run: RunFacts, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the cells of a run as one XML document.

    A cell out of tolerance is a failure, a failed cell and a cell that the infrastructure failed are errors, and an
    impossible cell is skipped. A cell that regressed has the property `regressed`.
    """
    root = ElementTree.Element("testsuites", {"name": "qnnsweep"})
    regressed = count(tables["cells"], tables["trends"]).regressed
    rows = sorted(tables["cells"], key=lambda cell: cell["model"] or "")
    for model, of_model in groupby(rows, key=lambda cell: cell["model"] or "-"):
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(model), "timestamp": run.started[:19]})
        cells = list(of_model)
        for cell in cells:
            _add_case(suite, cell, regressed.get(cell_key(cell), ()))
        for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(sum(_ELEMENTS.get(of.outcome(cell)) == element for cell in cells)))
        suite.set("tests", str(len(cells)))
        suite.set("time", f"{sum(map(of.seconds, cells)):.3f}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, cell: Row, worse: Sequence[Row]) -> None:
    """Add a test case. `worse`: the rows of `trends` of a cell that regressed, which become one property."""
    names = {"classname": f"qnnsweep.{cell['model'] or '-'}", "name": of.scheme_and_place(cell)}
    attributes = {key: _text(value) for key, value in names.items()} | {"time": f"{of.seconds(cell):.3f}"}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    known = {name: cell[name] for name in _PROPERTIES if cell[name] is not None}
    if worse:
        known["regressed"] = ", ".join(dict.fromkeys(row["series"] for row in worse))
    if known:
        properties = ElementTree.SubElement(case, "properties")
        for name, value in known.items():
            ElementTree.SubElement(properties, "property", {"name": name, "value": _text(value)})
    if (element := _ELEMENTS.get(of.outcome(cell))) is not None:
        problem = of.problem(cell)
        about = {"message": _text(problem.splitlines()[0])}
        if element != "skipped":
            about["type"] = _text(cell["error_type"] or of.outcome(cell))
        ElementTree.SubElement(case, element, about).text = _text(problem)
    if cell["diagnosis"]:
        ElementTree.SubElement(case, "system-out").text = _text(cell["diagnosis"])


def _text(value: object) -> str:
    """Return a value as text without the characters that XML does not allow."""
    return _NOT_XML.sub("\ufffd", str(value))
