"""Errors that are part of the product: what was expected, what came, what to do."""


class InputError(ValueError):
    """The caller gave something that cannot work; the message says what would."""


class NotConverged(RuntimeError):
    """A solver stopped before its tolerance. `partial` holds all that it had computed."""

    def __init__(self, message: str, partial):
        super().__init__(message)
        self.partial = partial
