"""Effect of each objective on a model, its cost, and what it makes the model forget: `docs/learning.md`.

    python -m tests.benchmarks.learning            # about an hour on two cores; begun again, it goes on

The model, the logs and the held-out prompts are those of `sample_data/`, the stages those of the command line. Every
training is a cell: a name, the options of `opdkit train`, a seed. What a cell measured is kept in the work folder, so
that only what is missing is computed; at the end `results.json` beside this file and everything in `docs/` that shows
its numbers are written anew.
"""
