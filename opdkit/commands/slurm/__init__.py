"""`opdkit slurm`: the pipeline as batch jobs on a Slurm cluster."""
