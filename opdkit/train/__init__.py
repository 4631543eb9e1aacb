"""`opdkit train`: targets -> a better model."""
