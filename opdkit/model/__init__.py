"""Token ids to numbers: load a model, score replies, sample new ones."""
