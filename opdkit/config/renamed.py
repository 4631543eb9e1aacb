"""Renamed options: command -> old name -> new name. An old name is an error that states the new one."""

_SERVER = {"base_url": "judge_url"}

RENAMED: dict[str, dict[str, str]] = {
    "init": _SERVER,
    "doctor": _SERVER,
    "run": _SERVER,
    "slurm": _SERVER,
    "judge": _SERVER | {"model": "judge_model"},
    "teacher": {
        "hint_select": "teacher_hint",
        "support": "top_k",
        "support_of": "top_k_of",
        "teacher_weight": "teacher_share",
        "unhinted": "score_unhinted",
        "written": "teacher_samples",
    },
    "train": {"blame_below": "negative_below"},
    "eval": {"limit": "max_prompts", "neutral": "neutral_text"},
    "rollout": {"from": "from_run"},
    "report": {"rows": "list_size"},
    "show": {"limit": "max_turns", "rows": "one_line"},
    "export": {"from": "import_reviews", "neutral": "include_neutral"},
}
