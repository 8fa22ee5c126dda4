"""The end of a process in the middle of its work."""


class Killed(BaseException):
    """The process ends here."""
