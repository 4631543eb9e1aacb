"""Options of every command, each declared once. Nothing heavy is imported, so `opdkit --help` answers at once."""
