"""`opdkit slurm`: the pipeline as batch jobs on a Slurm cluster."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdkit.commands.slurm.launch import Launch
    from opdkit.config.slurm import SlurmConfig


def run(config: "SlurmConfig") -> "Launch":
    """Write the scripts of what is missing, and submit them if asked."""
    from opdkit.commands.slurm.launch import run

    return run(config)
