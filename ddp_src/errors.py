"""Errors that a person can mend: one sentence in English, one in Chinese, no traceback needed."""


class UserError(Exception):
    """Something the person at the keyboard can put right.

    `en` and `zh` each say, in one sentence, what was wrong (with the value) and what to do.
    """

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(en, zh)
        self.en = en
        self.zh = zh

    def __str__(self) -> str:
        return f"{self.en}\n{self.zh}"


class DataError(UserError):
    """A data file or folder is missing, unsafe, malformed or could not be fetched."""


class ConfigError(UserError):
    """An option has a value that cannot work."""


class CheckpointError(UserError):
    """A checkpoint or run folder cannot be written, read or continued."""


class ReplicasDiffer(UserError):
    """The ranks of one run hold different parameters: gradients were not averaged on all of them."""
