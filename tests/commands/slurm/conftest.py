"""A real Slurm for the tests of this folder. Skipped, with the reason, where it is not installed or cannot start."""

from collections.abc import Iterator

import pytest
import slurm_cluster
from slurm_cluster import Cluster


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    try:
        with slurm_cluster.cluster() as cluster:
            yield cluster
    except slurm_cluster.UnavailableError as why:
        pytest.skip(str(why))
