"""The errors a user can meet. Everything else is a bug in opdkit."""


class OpdkitError(Exception):
    """The data or the run failed (exit code 1). The message says what is wrong, where, and what to do."""

    exit_code = 1


class ConfigError(OpdkitError):
    """The command was wrong (exit code 2): an option out of range, a missing path, an unknown name."""

    exit_code = 2
