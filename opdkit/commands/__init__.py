"""Every command that is not a stage."""
