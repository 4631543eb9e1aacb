"""Replies as people edited them: trained on in addition to the logged ones, and evidence for right and wrong tokens.

A hint leaves it to the teacher what the reply should have been. An edit does not: somebody wanted each of its tokens,
and the first token at which the logged reply departs from it was wrong. So the log-probs of the teacher, which reads
the edit in its prompt, are also corrected at these tokens.
"""

import math
from dataclasses import replace

import torch

from opdkit.store.counters import Counters
from opdkit.store.tables import EDIT
from opdkit.teacher.examples import Example, make_written_example
from opdkit.teacher.models import Scorer
from opdkit.teacher.scores import ReplyScores, SupportLogprobs

ODDS = 20.0  # how many times more often a wanted token is in an edit than one that is not wanted


def make_edited_example(scorer: Scorer, logged: Example, counters: Counters) -> Example | None:
    """Return the edit of a logged reply as an example to score; None if there is none, or it cannot be trained on.

    An edit that equals the logged reply, that the student cannot read, or that exceeds the context is counted.
    """
    if logged.edited is None:
        return None
    prompts = [reading.prompt_ids for reading in (logged.readings.student, *logged.readings.hinted[0])]
    ids, problem = logged.edited.ids, None
    if ids == list(logged.reply.ids):
        problem = "the edit is the logged reply"
    elif max(ids) >= scorer.vocabulary:
        problem = "tokens outside the model's vocabulary"
    elif max(map(len, prompts)) + len(ids) > scorer.max_tokens:
        problem = "no room for a reply"
    if problem:
        counters.count("not written", label=problem)
        return None
    counters.count("edited by people")
    return make_written_example(logged, 0, logged.edited, None, EDIT)


def apply_edit(scores: ReplyScores, example: Example) -> ReplyScores:
    """Return the scores of a reply, with the teacher's log-probs corrected by the edit, if there is one.

    By Bayes' rule, the odds of each token of the edit are multiplied by ODDS. Those of the first token at which the
    logged reply departs from the edit are divided by ODDS. Other positions do not change. A corrected token that is not
    in the support takes its last place.
    """
    if scores.teacher is None or example.edited is None:
        return scores
    ids_R = torch.tensor(example.reply.ids)
    gain_R = torch.full((len(ids_R),), math.log(ODDS) if example.written == EDIT else 0.0)  # of the token's log-odds
    if example.wrong is not None:
        gain_R[example.wrong] = -math.log(ODDS)
    loss_R = (gain_R.expm1() * scores.teacher.exp()).log1p()  # of all tokens, so that the probabilities add up to 1
    support = scores.support
    if support is not None and support.teacher is not None:
        ids_RK, old_RK, teacher_RK = support.ids.clone(), support.old.clone(), support.teacher.clone()
        missing_R = (ids_RK != ids_R[:, None]).all(-1) & (gain_R != 0)
        for of_support, of_reply in ((ids_RK, ids_R), (old_RK, scores.old), (teacher_RK, scores.teacher)):
            of_support[missing_R, -1] = of_reply[missing_R].to(of_support)
        gain_RK = torch.where(ids_RK == ids_R[:, None], gain_R[:, None], 0.0)
        support = SupportLogprobs(ids_RK, old_RK, teacher_RK + gain_RK - loss_R[:, None])
    return replace(scores, teacher=scores.teacher + gain_R - loss_R, support=support)
