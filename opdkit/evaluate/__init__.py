"""`opdkit eval`: the model before and after training, side by side."""
