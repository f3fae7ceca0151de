"""The pages, from the templates beside this module: HTML documents that load no other file, and Markdown.

The templates round numbers for display; the tables have the numbers as measured.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from qnnsweep.tasks.records.vocabulary import CAUSE_NAMES, CAUSE_STAGES
from qnnsweep.tasks.report import format as display

_FILTERS = (
    *("breakable", "decimal", "duration", "integer", "kib", "markdown", "milliseconds", "note", "percent", "plural"),
    *("printable", "real", "verdict", "words"),
)
_SCRIPTS: Mapping[str, Sequence[str]] = {
    "page": (
        *("page.js", "words.js", "tables.js", "budget.js", "ladder.js"),
        *("depth.js", "detail.js", "operator.js", "trends.js", "matrix.js", "beside.js", "routes.js"),
    ),
    "atlas": ("atlas.js",),
}
"""The files that are the script of a page. No other page has a script."""
_FUNCTIONS = ("at_least", "at_most", "interval", "limited", "lowest", "share_interval", "snr")


def html(name: str, /, *, styles: Sequence[str] = ("page.css",), **values: Any) -> str:
    """Return the page of the template `<name>.html.j2`. `styles`: the files that become part of it."""
    return _template(f"{name}.html.j2").render(
        style=Markup("\n".join(map(_beside, styles))),  # noqa: S704 - our own files
        script=Markup(_script(name)),  # noqa: S704 - our own files
        script_digest=_digest(_script(name)),
        **values,
    )


def script_digests() -> list[str]:
    """Return the digests of the scripts of all pages, for a content security policy."""
    return [_digest(_script(name)) for name in _SCRIPTS]


def _script(name: str) -> str:
    return "\n".join(map(_beside, _SCRIPTS.get(name, ())))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def markdown_text(name: str, /, **values: Any) -> str:
    """Return the page of the template `<name>.md.j2`, which escapes its texts with the filter `markdown`."""
    return _template(f"{name}.md.j2").render(**values)


def _template(name: str) -> jinja2.Template:
    return environment().get_template(name)


@cache
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: getattr(display, name) for name in _FILTERS}
    environment.globals |= {name: getattr(display, name) for name in _FUNCTIONS}
    environment.filters |= {
        "code_spans": _code_spans,
        "cosine": lambda value: display.decimal(value, 5),
        "db": display.decimal,
        "cause": lambda cause: CAUSE_NAMES.get(cause, cause),
        "stage": lambda cause: CAUSE_STAGES.get(cause, display.NULL),
        "icon": lambda outcome: outcome if outcome in display.OUTCOMES else "unknown",
        "table": _table,
    }
    return environment


def _code_spans(text: str) -> Markup:
    """Return `text` as HTML, with what is between two backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - the text is escaped


def _table(rows: Iterable[Iterable[str]], *head: str) -> str:
    return display.markdown_table(head, rows)


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
