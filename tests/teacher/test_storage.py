"""Tests of the size of supports on disk."""

import math

import numpy as np
import pyarrow.parquet as pq
import torch

from opdkit.config.teacher import TeacherConfig
from opdkit.store.part_writer import Stage
from opdkit.store.reading import part_path
from opdkit.store.tables import TARGETS, to_arrow


def most_likely_of_many(
    tokens: int, vocabulary: int, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids and log-probs [tokens, count] of student and teacher, distributed like those of a language model.

    The logits are the largest `count` of `vocabulary` normal ones (exactly: uniform order statistics through the normal
    quantile), with a random spread per position and one token that stands out by up to 15. The ids are independent of
    each other, which is the hardest case for any codec.
    """
    draw = torch.Generator().manual_seed(seed)
    spread = 1.5 + 2 * torch.rand(tokens, 1, generator=draw, dtype=torch.float64)
    gaps = -torch.rand(tokens, count, generator=draw, dtype=torch.float64).log()
    logits = -torch.special.ndtri(gaps.cumsum(1) / vocabulary) * spread
    logits[:, 0] += 15 * torch.rand(tokens, generator=draw)
    total = torch.logaddexp(logits[:, :1], math.log(vocabulary) + spread**2 / 2)
    old = (logits - total).clamp(max=0)
    teacher = (old + torch.randn(tokens, count, generator=draw)).clamp(max=0)
    ids = torch.randint(0, vocabulary, (tokens, count), generator=draw)
    return ids.int().numpy(), old.half().numpy(), teacher.half().numpy()


def test_a_support_of_fifty_takes_at_most_330_bytes_a_token(tmp_path):
    """This holds for K = 50 and V = 152k, and includes all columns of the table and the footer."""
    turns, length = 20, 200
    rows, stage = [], Stage.open(TeacherConfig(run=tmp_path, model="m"), "teacher", [TARGETS], parts=1)
    for n in range(turns):
        ids, old, teacher = most_likely_of_many(length, 152_000, 50, seed=n)
        assert 0.2 < np.exp(old[:, 0].astype(float)).mean() < 0.9
        logprobs = np.random.default_rng(n).exponential(size=(2, length))
        rows.append(dict.fromkeys(TARGETS.schema.names) | {
            "turn_id": f"chat-{n}:1", "prompt_tokens": 100, "cut_messages": 0, "response_ids": ids[:, 0].tolist(),
            "response_mask": [True] * length, "old_logprobs": (-logprobs[0]).tolist(),
            "teacher_logprobs": (-logprobs[1]).tolist(), "support_ids": ids, "support_old": old,
            "support_teacher": teacher,
        })  # fmt: skip
    with stage.writing(0) as out:
        out.add_rows("targets", rows)
    path = part_path(stage.config.run, "targets", 0)
    assert path.stat().st_size / (turns * length) <= 330
    read = pq.read_table(path)
    assert read.equals(to_arrow(TARGETS, rows))
    assert read.column("support_old")[3].as_py() == rows[3]["support_old"].tolist()
    footer = pq.read_metadata(path).row_group(0)
    columns = {footer.column(i).path_in_schema.partition(".")[0]: footer.column(i) for i in range(footer.num_columns)}
    assert "BYTE_STREAM_SPLIT" in columns["support_ids"].encodings
    for name in ("support_old", "support_teacher"):  # some readers cannot read split half-precision numbers
        assert set(columns[name].encodings) == {"PLAIN", "RLE"}
