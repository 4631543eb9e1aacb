"""opdkit: turn the conversation logs of an assistant into a better assistant, offline."""

__version__ = "0.1.0"
