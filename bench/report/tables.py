"""Tables and sections: what a report says, before it is text, Markdown or HTML."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

_GAP = "  "


@dataclass(slots=True)
class Table:
    """Cells are text already. The first `stub` columns name a row: they are kept when the others wrap.

    They begin at the left, as do all columns of `words`; numbers end at the right.
    """

    header: list[str]
    rows: list[list[str]]
    stub: int = 1
    title: str = ""
    words: bool = False

    def text(self, width: int | None = None) -> str:
        """Aligned columns; those that do not fit into `width` characters follow below, behind the stub again."""
        columns = range(len(self.header))
        cells = [max((len(row[column]) for row in self.rows), default=0) for column in columns]
        header = [[name] for name in self.header]
        widths = [max(len(name), cells[column]) for column, name in enumerate(self.header)]
        if width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            # Long names over short numbers: broken, they may still fit.
            header = [
                textwrap.wrap(name, max(cells[i], _longest_word(name))) or [""] for i, name in enumerate(self.header)
            ]
            widths = [max(cells[column], *map(len, header[column])) for column in columns]
        parts = [self._part(header, widths, part) for part in _fit(widths, self.stub, width)]
        return "\n\n".join([self.title + "\n" + parts[0] if self.title else parts[0], *parts[1:]])

    def _part(self, header: list[list[str]], widths: list[int], columns: list[int]) -> str:
        def line(cells: list[str]) -> str:
            padded = (
                cells[column].ljust(widths[column])
                if self.words or column < self.stub
                else cells[column].rjust(widths[column])
                for column in columns
            )
            return _GAP.join(padded).rstrip()

        height = max(len(header[column]) for column in columns)
        heading = [[""] * (height - len(name)) + name for name in header]
        rule = ["─" * width for width in widths]
        return "\n".join(
            [
                *(line([name[number] if name else "" for name in heading]) for number in range(height)),
                line(rule),
                *map(line, self._without_repeats()),
            ]
        )

    def _without_repeats(self) -> list[list[str]]:
        """A name that several rows have in common stands in the first of them."""
        above: list[list[str]] = [[], *self.rows]
        return [
            ["", *row[1:]] if self.stub > 1 and before[:1] == row[:1] else row
            for before, row in zip(above, self.rows, strict=False)
        ]

    def markdown(self) -> str:
        """A table of GitHub's Markdown."""

        def line(cells: list[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

        rule = [":--" if self.words or column < self.stub else "--:" for column in range(len(self.header))]
        return "\n".join([line(self.header), line(rule), *map(line, self.rows)])


@dataclass(slots=True)
class Section:
    """A heading, tables, and sentences below them."""

    title: str
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self, width: int | None = None) -> str:
        notes = [note if width is None else textwrap.fill(note, max(20, width)) for note in self.notes]
        heading = [f"{self.title}"] if self.title else []
        body = "\n\n".join([*(table.text(width) for table in self.tables), *(["\n".join(notes)] if notes else [])])
        return "\n".join([*heading, body])

    def markdown(self) -> str:
        tables = [f"{table.title}\n\n{table.markdown()}" if table.title else table.markdown() for table in self.tables]
        return "\n\n".join([*([f"**{self.title}**"] if self.title else []), *tables, *self.notes])


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table as text, its first column to the left, the rest to the right."""
    return Table(header, rows).text()


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=1)


def _fit(widths: list[int], stub: int, width: int | None) -> list[list[int]]:
    """Columns of each part: the stub, and as many others as fit, but at least one."""
    names, others = list(range(stub)), list(range(stub, len(widths)))
    if width is None or not others:
        return [names + others]
    room = width - sum(widths[column] + len(_GAP) for column in names)
    parts: list[list[int]] = []
    used = 0
    for column in others:
        if not parts or used + widths[column] > room:
            parts.append([*names])
            used = 0
        parts[-1].append(column)
        used += widths[column] + len(_GAP)
    return parts
