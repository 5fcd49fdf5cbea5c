"""Errors that a person reads as one line."""


class UsageError(ValueError):
    """Wrong input: what was wrong and what would be right. Exit code 2, nothing written."""


class RunError(RuntimeError):
    """A run had to stop; its cause is attached. Exit code 1."""
