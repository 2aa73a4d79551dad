"""What can go wrong, and what to do about it.

Every message says what was wrong with the value, what was expected and how to go on. Each class
also inherits from the builtin exception that a caller would expect to catch. Not reaching the
target class is no error: it is an outcome, and stands in the :class:`~leapfactual.Explanation`.
"""


class LeapError(Exception):
    """Base class of every error that leapfactual raises on purpose."""


class InputError(LeapError, ValueError):
    """A value that was handed in is not what was expected."""


class MissingData(LeapError, FileNotFoundError):
    """A file or data set is not where it was looked for."""


class MissingExtra(LeapError, ImportError):
    """An optional dependency is needed and not installed."""


class NeedsGradient(LeapError, TypeError):
    """Something that only answers was to be differentiated."""


class ClassifierError(LeapError, RuntimeError):
    """A classifier gave no answer.

    Arguments:
        message: What happened.
        rows: The rows of the batch that got no answer.
    """

    def __init__(self, message: str, rows: list[int]) -> None:
        super().__init__(message)
        self.rows = rows


class IntegrationError(LeapError, ArithmeticError):
    """A transport along the flow left the finite numbers."""


class TrainingError(LeapError, ArithmeticError):
    """A training loss left the finite numbers."""


class ContractError(LeapError, AssertionError):
    """A part does not keep its contract; see :mod:`leapfactual.testing`."""
