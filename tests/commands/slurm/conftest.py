"""A real Slurm for the tests of this folder. They are skipped, with the reason, if it is missing or cannot start."""

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
