"""Log files: opened, unpacked, divided into units of work."""
