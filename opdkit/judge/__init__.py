"""`opdkit judge`: turns -> verdicts."""
