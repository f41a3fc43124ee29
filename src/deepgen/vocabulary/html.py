"""Facts for notebooks, which show objects as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def table(title: str, rows: Mapping[str, str]) -> str:
    """A heading and a row for each fact. All of it may come from a file of someone else's, so all of it is escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<b>{escape(title)}</b><table>{cells}</table>"
