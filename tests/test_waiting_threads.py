"""Tests of how long OpenMP's waiting threads spin, as OpenMP reports it once opdkit has imported torch."""

import os
import re
import subprocess
import sys

import pytest
import torch

IMPORT = "from opdkit.config.commands import load_function; load_function('opdkit.model.load:load_tokenizer')"


def spin_count(**environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True,
                          env=kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment)  # fmt: skip
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    if found is None:
        pytest.skip(f"OpenMP is not that of GNU: {torch.__config__.parallel_info()}")
    return found[1]


def test_a_waiting_thread_sleeps_soon():
    assert spin_count() == "3000"


@pytest.mark.parametrize(
    ("name", "value", "count"), [("GOMP_SPINCOUNT", "77", "77"), ("OMP_WAIT_POLICY", "PASSIVE", "0")]
)
def test_what_the_user_set_stays(name, value, count):
    assert spin_count(**{name: value}) == count
