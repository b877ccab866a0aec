"""The one error that is the caller's to mend."""


class InputError(ValueError):
    """Something the caller gave is wrong. The message is one line: what is wrong, and what to do about it."""
