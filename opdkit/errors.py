"""Errors that a user can meet. Any other exception is a bug in opdkit."""


class OpdkitError(Exception):
    """Failure of the data or the run (exit code 1). The message says what is wrong, where it is, and what to do."""

    exit_code = 1


class ConfigError(OpdkitError):
    """Wrong command (exit code 2): an option out of range, a missing path, an unknown name."""

    exit_code = 2


class NothingLearnedError(OpdkitError):
    """Failure to learn: nothing can be trained on, or no state of the training is better than the model before."""


class NoPromptsError(OpdkitError):
    """Failure of `eval --from-log`: no session held out of training gives a prompt."""


class AnotherPlanError(ConfigError):
    """Refusal to resume a stage that was begun with different options or inputs. `what`: without the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        super().__init__(f"{what}\n{remedy}")
