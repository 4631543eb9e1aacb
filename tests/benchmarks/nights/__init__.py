"""Nights on a log that grows: `opdkit night` against the world that writes the log."""
