"""The options of every command, each declared once. Imports nothing heavy: `opdkit --help` answers at once."""
