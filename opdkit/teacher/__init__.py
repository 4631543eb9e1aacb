"""`opdkit teacher`: verdicts -> targets."""
