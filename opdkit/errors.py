"""Errors that a user can meet. Any other exception is a bug in opdkit."""


class OpdkitError(Exception):
    """Failure of the data or the run (exit code 1). The message says what is wrong, where, and what to do."""

    exit_code = 1


class ConfigError(OpdkitError):
    """Wrong command (exit code 2): an option out of range, a missing path, an unknown name."""

    exit_code = 2


class NothingLearnedError(OpdkitError):
    """Training that could not help: there is nothing to learn from, or it only made the model worse."""


class NoPromptsError(OpdkitError):
    """Sessions held out of training of which none makes a prompt."""


class AnotherPlanError(ConfigError):
    """Stage that was begun with other options or inputs than it is given now."""
