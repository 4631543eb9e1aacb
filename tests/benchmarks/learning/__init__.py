"""Effect of each objective on a model, its cost, and what it makes the model forget: `docs/sample-world.md`.

    python -m tests.benchmarks.learning            # about two hours on two cores; started again, it resumes
    python -m tests.benchmarks.learning --add      # measures only the cells that results.json does not have

Model, logs and held-out prompts come from `sample_data/`; the stages are those of the command line. Every training is a
cell: a name, the options of `opdkit train`, and a seed. The numbers of a cell are stored in the work folder, so that
only missing cells are measured. At the end, `results.json` beside this file is written again, and so are the page and
the plots in `docs/` that show its numbers.
"""
