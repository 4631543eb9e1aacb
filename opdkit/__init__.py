"""opdkit: turn the conversation logs of an assistant into a better assistant, offline.

    import opdkit
    run = opdkit.Run("runs/try")        # its methods are the stages, see docs/python.md

`import opdkit` is fast, since each name is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from opdkit.version import __version__

__all__ = ["ConfigError", "OpdkitError", "Run", "__version__"]

_MODULES = {"Run": "opdkit.api", "ConfigError": "opdkit.errors", "OpdkitError": "opdkit.errors"}

if TYPE_CHECKING:
    from opdkit.api import Run
    from opdkit.errors import ConfigError, OpdkitError
else:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'opdkit' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
