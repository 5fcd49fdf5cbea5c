"""The three files of the page."""

from __future__ import annotations

from importlib.resources import files as resources


def page_file(name: str) -> str:
    return (resources(__package__) / name).read_text(encoding="utf-8")
