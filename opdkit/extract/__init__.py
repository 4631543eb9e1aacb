"""`opdkit extract`: logs to sessions and turns."""
