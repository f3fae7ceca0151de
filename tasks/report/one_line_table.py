"""A table for the terminal with one line per row, whatever the width of the terminal."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

_BETWEEN = "  "
_MEDIUM_WIDTH = 28
"""The width to which texts are shortened before a column is left out."""
_LEAST_WIDTH = 8
"""The width to which texts are shortened after that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the table.

    `values`: by the names of the columns; without values, the row has no line. `heading`, `note`: texts for lines of
    their own above and below the row.
    """

    values: Mapping[str, Text] = field(default_factory=dict[str, Text])
    heading: Text = field(default_factory=Text)
    note: Text = field(default_factory=Text)


@dataclass(frozen=True, kw_only=True, slots=True)
class OneLineTable:
    """A table that fits into the terminal: it drops columns, then shortens texts, and never breaks a row."""

    columns: Sequence[str]
    rows: Sequence[Row]
    dropped_first: Sequence[str] = ()
    """The columns that are left out if the terminal is too narrow, in this order."""
    right: Collection[str] = ()
    """The columns that are aligned to the right."""
    title: str = ""
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width - 1)
        total = sum(widths.values()) + len(_BETWEEN) * (len(widths) - 1)
        if self.title:
            yield Text(self.title, "italic", no_wrap=True, overflow="ellipsis")
        yield self._line({name: Text(name, "bold") for name in widths}, widths)
        yield Text(f" {'─' * total}")
        for row in self.rows:
            if row.heading:
                yield Padding(row.heading, (0, 0, 0, 1))
            if row.values:
                yield self._line(row.values, widths)
            if row.note:
                yield Padding(row.note, (0, 0, 0, 3))
        if self.caption:
            yield Text(f" {self.caption}", "italic", no_wrap=True, overflow="ellipsis")

    def _widths(self, width: int) -> dict[str, int]:
        """Return the width of every column that fits into `width`."""
        natural = {
            name: max([cell_len(name), *(cell_len(row.values[name].plain) for row in self.rows if row.values)])
            for name in self.columns
        }

        def excess() -> int:
            return sum(natural.values()) + len(_BETWEEN) * (len(natural) - 1) - width

        if excess() > 0:
            natural = {name: min(width, max(_MEDIUM_WIDTH, cell_len(name))) for name, width in natural.items()}
        for name in self.dropped_first:
            if excess() <= 0:
                break
            del natural[name]
        while excess() > 0:
            longest = max(natural, key=lambda name: natural[name])
            if natural[longest] <= _LEAST_WIDTH:
                break
            natural[longest] = max(_LEAST_WIDTH, natural[longest] - excess())
        return natural

    def _line(self, values: Mapping[str, Text], widths: Mapping[str, int]) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, (name, width) in enumerate(widths.items()):
            value = values[name].copy()
            value.truncate(width, overflow="ellipsis")
            value.align("right" if name in self.right else "left", width)
            line.append(_BETWEEN if number else " ")
            line.append_text(value)
        line.rstrip()
        return line
