"""Nights on a log that grows: `opdkit night` and a simulated world that writes the log."""
