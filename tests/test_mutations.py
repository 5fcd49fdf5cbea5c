"""The table of mutants keeps up with the code. `mutations.py` itself takes minutes and is run by hand."""

from mutations import MUTANTS, ROOT


def test_every_mutant_changes_something() -> None:
    for file, old, new in MUTANTS:
        assert old in (ROOT / file).read_text() and old != new, f"{file} has no {old!r}"
