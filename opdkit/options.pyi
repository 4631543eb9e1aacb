"""Options of the methods of `opdkit.Run`, by command. None stands for the default.

Written by docs/generate.py from opdkit/config: edit that, not this file.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

JSON = dict[str, Any]
Text = str | PathLike[str]  # a path, or a run
Texts = Text | Sequence[Text] | Mapping[str, object]  # one, several, or NAME=VALUE as a dict

# (prompt, reply, next state) -> reward (1, 0, -1; None: cannot tell) and hint. Messages are dicts
# such as {"role": "user", "content": "..."}; tool calls are under "tool_calls".
Judge = Callable[[list[JSON], JSON, list[JSON]], tuple[int | None, str | None]]
# A record of the log -> the record that the format `openai` has: {"messages": [...]}.
Reader = Callable[[JSON], JSON]
# (reply, row of its prompt) -> whether it passes.
Check = Callable[[str, JSON], bool]


class ExtractOptions(TypedDict, total=False):
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    format: Literal["auto", "openai", "anthropic", "sharegpt", "openclaw_rl", "pi", "claude_code", "codex", "sweagent", "wildchat", "lmsys", "langfuse", "otel", "langsmith", "litellm", "openai_stored", "chatgpt", "open_webui", "claude_ai", "librechat", "anythingllm", "cline", "gemini_cli"] | Reader | None
    """the log format; auto looks at the data"""
    map: Text | None
    """TOML file that says where the fields are; for logs of no known format, see docs/logs.md"""
    filter: Texts | None
    """keep only sessions with FIELD=VALUE; with =, !=, >=, <=, > or <; FIELD is model, time, language, format, source or metadata.NAME; VALUE may hold * and |; may be given repeatedly"""
    side: bool | None
    """train on side calls, too, such as sessions of subagents; without it their turns are skipped"""
    redact: bool | None
    """replace secrets and personal data; by [key], [password], [email], [phone], [card], ... (docs/logs.md)"""
    redact_pattern: Texts | None
    """replace matches of a pattern, NAME=REGEX; [NAME] replaces them; works without --redact too; may be given repeatedly"""
    redact_names: Text | None
    """replace people's names by [name]; a spaCy model such as en_core_web_sm; needs opdkit[pii]; slow"""
    workers: int | None
    """processes that share this shard"""
    part_mb: float | None
    """unpacked size of a part of whole sessions; default: log / 64, from 0.25 to 8 MB"""
    max_line_mb: int | None
    """reject longer lines unread"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    dry_run: bool | None
    """report what would be done, write nothing; from 1,000 lines each"""
    config: Text | None
    """TOML file with one table per stage; keyword arguments win"""


class JudgeOptions(TypedDict, total=False):
    load_in_4bit: bool | None
    """quantize the models while they load (NF4, needs bitsandbytes)"""
    template_arg: Texts | None
    """argument of the chat template, NAME=VALUE; for example enable_thinking=false; may be given repeatedly"""
    seed: int | None
    """seed of every random draw"""
    wording: Text | None
    """TOML file with your own wording of the prompts; the judge's questions and criterion, the words around a hint: docs/wording.md"""
    judge: Literal["rules", "reaction", "local", "endpoint", "batch"] | Judge | None
    """who judges, a model on a server (endpoint) or in this process (local), or English patterns to try opdkit out, not to train on (rules); endpoint: an OpenAI-compatible server, the larger its model the better; batch: such a model, through files of requests and answers; reaction: nobody, each reaction itself is the hint"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; needed by --judge local, endpoint and batch"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    api_key_env: Text | None
    """environment variable that holds the server's key; empty: no key is sent"""
    judge_first: Text | None
    """a smaller model that is asked first; the judge is asked only if the first one's votes differ, fail or see a hint; a path, or with --judge-first-url its name on a server; docs/guide.md#choose-a-judge"""
    judge_first_url: Text | None
    """address of the first judge's server; may be that of --judge-url; default: the model runs in this process"""
    judge_first_key_env: Text | None
    """environment variable that holds the key of the first judge's server; default: that of --api-key-env"""
    out: Text | None
    """batch: the file of requests to write; one per vote that has no answer yet, in the form of OpenAI's Batch API"""
    in_: Texts | None
    """batch: a file of answers to read; in any order, as OpenAI's Batch API or `vllm run-batch` wrote it; may be given repeatedly; with --out, the requests that are left are written"""
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    good: Texts | None
    """reward +1, without a vote, if this holds; a condition as for extract --filter (metadata.stars>=4) on the session or on the call that wrote the turn; may be given repeatedly, then all must hold"""
    bad: Texts | None
    """reward -1, without a vote, if this holds; as --good; both or none: votes decide"""
    conflicts: Literal["rating", "hint", "neither"] | None
    """what wins if a reply was rated +1, but was also edited, discarded for another one, or complained about; rating: +1 and no hint; hint: -1 and the hint; neither: it trains nothing"""
    criterion: Text | None
    """text file that says which replies the judge rewards with +1, 0 and -1; docs/calibrate.md"""
    votes: int | None
    """per question and turn; rules always give one"""
    all_votes: bool | None
    """endpoint: ask for all votes; by default, opdkit stops asking once more votes can change neither the reward nor whether there is a hint"""
    weigh_votes: bool | None
    """weigh each vote by its confidence; the probability of its decision's tokens, from the local model or the server's log-probs; if a vote has none, each vote on the question counts as one"""
    temperature: float | None
    """sampling temperature"""
    max_new_tokens: int | None
    """longest reply; a vote that is cut off does not count"""
    hint_select: Literal["consensus", "longest", "shortest", "score"] | None
    """choice among the accepted hints; consensus: the hint that has most words in common with all votes"""
    min_hint_chars: int | None
    """reject shorter hints; two can be a whole instruction in Chinese"""
    max_hint_chars: int | None
    """reject longer hints"""
    max_section_chars: int | None
    """longest section of the judge's prompt; request, reply and next state each"""
    batch_tokens: int | None
    """tokens in memory at once; local: prompts and votes"""
    concurrency: int | None
    """parallel requests to a server"""
    timeout: float | None
    """give up on a request after this"""
    retries: int | None
    """endpoint: further attempts of a request; with growing pauses; batch: 0 counts what failed as failed votes"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    """weights and activations; auto: bfloat16 on a GPU, float32 on a CPU"""
    dry_run: bool | None
    """report what would be done, write nothing; turns, questions, and the tokens that a model would read"""
    price: Text | None
    """price per million tokens, as IN,OUT; with --dry-run, in any currency: 0.10,0.40"""
    judge_first_price: Text | None
    """price per million tokens, as IN,OUT; with --dry-run, in any currency: 0.10,0.40; for --judge-first"""
    measure: int | None
    """time N turns, to estimate how long all take; with --dry-run; needs the judge, or both models"""
    config: Text | None
    """TOML file with one table per stage; keyword arguments win"""


class TeacherOptions(TypedDict, total=False):
    load_in_4bit: bool | None
    """quantize the models while they load (NF4, needs bitsandbytes)"""
    template_arg: Texts | None
    """argument of the chat template, NAME=VALUE; for example enable_thinking=false; may be given repeatedly"""
    seed: int | None
    """seed of every random draw"""
    wording: Text | None
    """TOML file with your own wording of the prompts; the judge's questions and criterion, the words around a hint: docs/wording.md"""
    sample_url: Texts | None
    """sample replies on this OpenAI-compatible server; it must serve the same weights, which is measured; for two models, two servers or one that serves both; may be given repeatedly; docs/serving.md"""
    api_key_env: Text | None
    """environment variable that holds the server's key; empty: no key is sent"""
    concurrency: int | None
    """parallel requests to a server"""
    model: Text | None
    """the student: a model folder or a name on the hub; a folder is in Hugging Face format"""
    served_as: Texts | None
    """name under which a server runs the student, so that logs name it, too; may be given repeatedly"""
    teacher: Texts | None
    """the model that reads the hint, [NAME=]PATH; default: the student; of several, probabilities are averaged"""
    teacher_share: Texts | None
    """a teacher's share in the average, NAME=SHARE; default: 1; may be given repeatedly"""
    teacher_route: Text | None
    """metadata field that names a session's teacher, such as metadata.tier; instead of the average"""
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    max_tokens: int | None
    """longest prompt + reply; default: the model's"""
    too_long: Literal["drop", "cut"] | None
    """a turn that does not fit; drop it, or cut whole messages off its beginning"""
    teacher_hint: Literal["judge", "longest", "shortest", "score", "overlap"] | None
    """the accepted hint that the teacher reads; judge: the one that the judge chose; overlap: of up to three, the one whose top tokens are most often the student's"""
    check_hints: int | None
    """test each hint on N fresh replies of the student with it and N without; dropped if replies with it do what it asks no more often than those without, and most do not; 8 are usual; hints that people decided stay"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; default: that of the run, else the student"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    hint_placement: Literal["last-user", "tail", "system"] | None
    """place of the hint in the prompt"""
    top_k: int | None
    """most likely tokens to store per position; with their log-probs under both models; 0 stores none"""
    top_k_of: Literal["student", "teacher"] | None
    """the model whose top tokens are stored"""
    score_unhinted: bool | None
    """also score without the hint; separates the effect of the hint from that of another model"""
    teacher_samples: int | None
    """replies to sample from the hinted teacher; N per hinted turn, to train on too; default: 1, or 0 for models on several devices and for an average of teachers"""
    max_new_tokens: int | None
    """longest reply; with --teacher-samples and --check-hints"""
    batch_tokens: int | None
    """tokens in memory at once"""
    turn_by_turn: bool | None
    """read every prompt from its beginning; same results up to rounding, and far slower"""
    compile: bool | None
    """fuse small operations with torch.compile; faster on a GPU, and the first passes take up to a minute longer"""
    device_map: Literal["auto", "balanced", "sequential"] | None
    """spread layers over all GPUs of this process; the rest waits in memory or on disk; one process per node"""
    tensor_parallel: bool | None
    """under torchrun: split each layer over all GPUs; all processes score the same parts together"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    """weights and activations; auto: bfloat16 on a GPU, float32 on a CPU"""
    dry_run: bool | None
    """report what would be done, write nothing; replies, and the tokens that the models would read"""
    price: Text | None
    """price per million tokens, as IN,OUT; with --dry-run, in any currency: 0.10,0.40"""
    measure: int | None
    """time N turns, to estimate how long all take; with --dry-run; needs the judge, or both models"""
    config: Text | None
    """TOML file with one table per stage; keyword arguments win"""


class TrainOptions(TypedDict, total=False):
    load_in_4bit: bool | None
    """quantize the models while they load (NF4, needs bitsandbytes); the adapters are trained over them; the teacher stage needs it, too"""
    template_arg: Texts | None
    """argument of the chat template, NAME=VALUE; for example enable_thinking=false; may be given repeatedly"""
    seed: int | None
    """seed of every random draw"""
    model: Text | None
    """the student: a model folder or a name on the hub; the model that the teacher stage scored"""
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    filter: Texts | None
    """keep only sessions with FIELD=VALUE; as `opdkit extract --filter`; FIELD may also be session, the session's id; may be given repeatedly"""
    max_turns_per_session: int | None
    """at most N turns of a session; drawn by --seed, so that no user outweighs all others"""
    holdout: float | None
    """share of the sessions to keep for eval"""
    order: Literal["random", "easy-first", "hard-first"] | None
    """order of the turns; easy: advantages near 0"""
    objective: Literal["opd", "binary", "combine", "topk", "hybrid", "distill", "blend", "alternate"] | None
    """what to learn from; opd: teacher - student on the logged token; binary: the reward; combine: opd + 0.2 binary; topk: teacher - student on the tokens of the support; hybrid: topk + 0.2 binary; distill: divergence from the teacher over the support; blend: distill + 0.1 binary; alternate: one step of binary on turns without a hint, one step of opd on turns with one"""
    reward_weight: float | None
    """weight of the reward term; default: the objective's"""
    teacher_weight: float | None
    """weight of the teacher term; default: the objective's"""
    support_weight: float | None
    """weight of the support term; default: the objective's"""
    divergence_weight: float | None
    """weight of the divergence term; default: the objective's"""
    advantage_clip: float | None
    """clip teacher advantages to +-C; 0 is off"""
    clip_low: float | None
    """lower clip of the probability ratio: 1 - this"""
    clip_high: float | None
    """upper clip of the probability ratio: 1 + this"""
    clip_low_end: float | None
    """move --clip-low linearly to this by the last step"""
    clip_high_end: float | None
    """move --clip-high linearly to this by the last step"""
    dual_clip: float | None
    """bound of the ratio for negative advantages; above 1; 0 is off"""
    divergence_alpha: float | None
    """0 is forward KL, 1 is reverse KL; 0: KL(teacher, student); 1: KL(student, teacher); between: generalised Jensen-Shannon divergence with the mixture (1 - this) student + this teacher"""
    forward_kl: float | None
    """weight of an added forward KL; teaches a student that is sure of another token; 0 is off"""
    kl_coef: float | None
    """weight of the KL to the reference; 0 is off"""
    anchor_weight: float | None
    """weight of the divergence from the old policy; on turns without a complaint; 0 is off"""
    reference: Text | None
    """frozen model of the KL of --kl-coef; with the student's tokenizer; default: the student before training"""
    kl_estimator: Literal["k1", "k2", "k3"] | None
    """estimator of the KL of --kl-coef; from the logged token"""
    min_advantage: float | None
    """skip tokens with a smaller difference; teacher terms: that of teacher and student"""
    skip_first: int | None
    """skip the first tokens of a reply; teacher terms: they may echo the hint"""
    confidence_weight: bool | None
    """weigh tokens by the teacher's probability; teacher terms"""
    behavior_cap: float | None
    """cap of the importance weight of a token; student's probability over the logged one; 0 is off"""
    negative_below: float | None
    """negative rewards: only tokens less likely than this; under the student; 1 is all"""
    group_normalise: Literal["off", "repeated", "all"] | None
    """normalise rewards of equal prompts; less their mean, over their standard deviation; repeated: a prompt that comes once keeps its reward; all: it gets 0"""
    group_scale: Literal["std", "none"] | None
    """divisor of --group-normalise; none: rewards less their mean (Dr. GRPO)"""
    overlong_max: int | None
    """replies of N tokens lose 1 of their reward; 0 is off"""
    overlong_cache: int | None
    """the deduction begins N tokens earlier"""
    overlong_shape: Literal["linear", "quadratic"] | None
    """rise of the deduction; quadratic: slow at first"""
    aggregation: Literal["token-mean", "turn-mean"] | None
    """mean over tokens, or over turns; token-mean: all tokens of a step; turn-mean: the means of its turns"""
    epochs: int | None
    """passes over the targets; default: as many as make 90 steps, at most 10, and up to 5 times as many while the replies are far from the teacher's"""
    learning_rate: float | None
    """peak learning rate; default: found by --step-limit"""
    step_limit: float | None
    """largest KL of one optimizer step; on some of its own replies; a larger step is made smaller; 0 is off"""
    batch_turns: int | None
    """turns per optimizer step; over all processes; with whole sessions, at least this many"""
    batch_by: Literal["session", "turn"] | None
    """draw whole sessions, or single turns; session: whole ones until --batch-turns; what they share is read once"""
    validate: int | None
    """prompts to find the best state with; N with a hint, and N without a complaint, kept out of training if the log has enough; a state that is worse than before training is not written; 0 is off"""
    schedule: Literal["cosine", "constant"] | None
    """learning rate after the warm-up; cosine: half a cosine down to 0"""
    warmup_steps: int | None
    """steps over which the learning rate rises from 0"""
    weight_decay: float | None
    """AdamW weight decay"""
    beta1: float | None
    """AdamW beta 1"""
    beta2: float | None
    """AdamW beta 2"""
    epsilon: float | None
    """AdamW epsilon, as a share of the largest gradient so far; of its root mean square"""
    max_grad_norm: float | None
    """scale gradients down to this norm; 0 is off"""
    lora_rank: int | None
    """train LoRA adapters of this rank, 0 for none; instead of all weights"""
    lora_alpha: float | None
    """LoRA scale"""
    micro_batch_tokens: int | None
    """per forward pass; a longer turn goes alone"""
    gradient_checkpointing: bool | None
    """less memory, slower: recompute activations"""
    compile: bool | None
    """fuse small operations with torch.compile; faster on a GPU, and the first passes take up to a minute longer"""
    sharding: Literal["none", "fsdp"] | None
    """split the training over processes; none: each process holds the whole model; fsdp: each holds a share of weights, gradients, optimizer state"""
    shard: Text | None
    """which parts to do, as I/N; training has no parts: only auto"""
    overwrite: bool | None
    """first discard what the stage has written"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    """weights and activations; auto: bfloat16 on a GPU, float32 on a CPU"""
    name: Text | None
    """name of one of several trainings on the same targets; stored in RUN/NAME.training"""
    checkpoint_every: int | None
    """steps between checkpoints, at most 10 minutes; 0: only when the training is stopped"""
    keep_epochs: bool | None
    """also keep the model after each epoch; in train/epochs/N/model; holds the weights twice while it writes"""
    tracker: Literal["tensorboard", "wandb", "trackio"] | None
    """also log to"""
    dry_run: bool | None
    """report what would be done, write nothing"""
    config: Text | None
    """TOML file with one table per stage; keyword arguments win"""


class EvalOptions(TypedDict, total=False):
    load_in_4bit: bool | None
    """quantize the models while they load (NF4, needs bitsandbytes)"""
    template_arg: Texts | None
    """argument of the chat template, NAME=VALUE; for example enable_thinking=false; may be given repeatedly"""
    seed: int | None
    """seed of every random draw"""
    wording: Text | None
    """TOML file with your own wording of the prompts; the judge's questions and criterion, the words around a hint: docs/wording.md"""
    sample_url: Texts | None
    """sample replies on this OpenAI-compatible server; it must serve the same weights, which is measured; for two models, two servers or one that serves both; may be given repeatedly; docs/serving.md"""
    api_key_env: Text | None
    """environment variable that holds the server's key; empty: no key is sent"""
    concurrency: int | None
    """parallel requests to a server"""
    prompts: Text | None
    """JSONL file of held-out prompts with checks; or --from-log"""
    from_log: bool | None
    """prompts from complaints, praise and accepted replies in held-out sessions (`opdkit train --holdout`); instead of --prompts; writes them to RUN/from-log.jsonl, which --prompts reads"""
    max_prompts: int | None
    """only the first N prompts, for a cheap trial; logged replies: those of N sessions"""
    model: Text | None
    """the student: a model folder or a name on the hub; before training; default: the one that was trained"""
    trained: Text | None
    """the model after training; default: RUN/train/model"""
    served_as: Texts | None
    """name under which a server runs the student, so that logs name it, too; may be given repeatedly"""
    samples: int | None
    """sampled replies per prompt; eval adds one greedy reply"""
    temperature: float | None
    """sampling temperature"""
    max_new_tokens: int | None
    """longest reply"""
    neutral_text: Text | None
    """text file for the forgetting check; one passage per line; default: what the users of the logs wrote"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; for checks written as {"judge": criterion}; default: that of the run"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    batch_tokens: int | None
    """tokens in memory at once; read or sampled"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    """weights and activations; auto: bfloat16 on a GPU, float32 on a CPU"""
    name: Text | None
    """name of one of several trainings on the same targets; stored in RUN/NAME.training"""
    config: Text | None
    """TOML file with one table per stage; keyword arguments win"""


class RolloutOptions(TypedDict, total=False):
    load_in_4bit: bool | None
    """quantize the models while they load (NF4, needs bitsandbytes)"""
    template_arg: Texts | None
    """argument of the chat template, NAME=VALUE; for example enable_thinking=false; may be given repeatedly; default: those of the teacher of --from-run"""
    seed: int | None
    """seed of every random draw"""
    wording: Text | None
    """TOML file with your own wording of the prompts; the judge's questions and criterion, the words around a hint: docs/wording.md"""
    sample_url: Texts | None
    """sample replies on this OpenAI-compatible server; it must serve the same weights, which is measured; for two models, two servers or one that serves both; may be given repeatedly; docs/serving.md"""
    api_key_env: Text | None
    """environment variable that holds the server's key; empty: no key is sent"""
    concurrency: int | None
    """parallel requests to a server"""
    from_run: Text | None
    """the run whose hinted turns are answered again; its hints carry over"""
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    model: Text | None
    """the student: a model folder or a name on the hub; as it is now"""
    samples: int | None
    """sampled replies per prompt; several are a group for --group-normalise of train"""
    max_new_tokens: int | None
    """longest reply"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; rewards replies that do what the hint asks; default: no rewards"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    batch_tokens: int | None
    """tokens in memory at once; prompts and replies"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    """weights and activations; auto: bfloat16 on a GPU, float32 on a CPU"""
    config: Text | None
    """TOML file with one table per stage; keyword arguments win"""


class RunOptions(TypedDict, total=False):
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    model: Text | None
    """the student: a model folder or a name on the hub"""
    judge: Literal["rules", "reaction", "local", "endpoint", "batch"] | Judge | None
    """who judges, a model on a server (endpoint) or in this process (local), or English patterns to try opdkit out, not to train on (rules); endpoint: an OpenAI-compatible server, the larger its model the better; batch: such a model, through files of requests and answers; reaction: nobody, each reaction itself is the hint; needed, here or in --config"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; default with --judge local: the student"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    objective: Literal["opd", "binary", "combine", "topk", "hybrid", "distill", "blend", "alternate"] | None
    """what to learn from"""
    learning_rate: float | None
    """peak learning rate"""
    seed: int | None
    """seed of every random draw"""
    criterion: Text | None
    """text file that says which replies the judge rewards with +1, 0 and -1; docs/calibrate.md"""
    wording: Text | None
    """TOML file with your own wording of the prompts; the judge's questions and criterion, the words around a hint: docs/wording.md"""
    set: Texts | None
    """any option, as STAGE.OPTION=VALUE; may be given repeatedly"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    config: Text | None
    """TOML file with one table per stage; flags win"""
    dry_run: bool | None
    """report what would be done, write nothing; what depends on stages that are not done yet is bounded"""
    price: Text | None
    """price per million tokens, as IN,OUT; with --dry-run, in any currency: 0.10,0.40"""
    measure: int | None
    """time N turns, to estimate how long all take; with --dry-run; needs the judge, or both models"""


class SlurmOptions(TypedDict, total=False):
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    model: Text | None
    """the student: a model folder or a name on the hub"""
    judge: Literal["rules", "reaction", "local", "endpoint", "batch"] | Judge | None
    """who judges, a model on a server (endpoint) or in this process (local), or English patterns to try opdkit out, not to train on (rules); endpoint: an OpenAI-compatible server, the larger its model the better; batch: such a model, through files of requests and answers; reaction: nobody, each reaction itself is the hint; needed, here or in --config"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; default with --judge local: the student"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    objective: Literal["opd", "binary", "combine", "topk", "hybrid", "distill", "blend", "alternate"] | None
    """what to learn from"""
    learning_rate: float | None
    """peak learning rate"""
    seed: int | None
    """seed of every random draw"""
    criterion: Text | None
    """text file that says which replies the judge rewards with +1, 0 and -1; docs/calibrate.md"""
    wording: Text | None
    """TOML file with your own wording of the prompts; the judge's questions and criterion, the words around a hint: docs/wording.md"""
    set: Texts | None
    """any option, as STAGE.OPTION=VALUE; may be given repeatedly"""
    shards: int | None
    """tasks of extract, judge and teacher each"""
    max_running: int | None
    """tasks of a stage that run at once; default: all"""
    nodes: int | None
    """nodes of the training"""
    processes: int | None
    """training processes per node; default: its GPUs, or 1"""
    partition: Texts | None
    """partition, [STAGE=]VALUE; may be given repeatedly"""
    account: Texts | None
    """account, [STAGE=]VALUE; may be given repeatedly"""
    time: Texts | None
    """time limit, [STAGE=]VALUE; may be given repeatedly; such as teacher=4:00:00; default: the partition's"""
    gpus: Texts | None
    """GPUs, [STAGE=]VALUE; may be given repeatedly; COUNT or TYPE:COUNT of a task, or of a node of the training"""
    cpus: Texts | None
    """CPU cores of a task, [STAGE=]VALUE; may be given repeatedly"""
    mem: Texts | None
    """memory of a node, [STAGE=]VALUE; may be given repeatedly; such as 64G"""
    sbatch: Texts | None
    """another option of sbatch; --constraint=a100, STAGE=--exclusive; may be given repeatedly"""
    setup: Texts | None
    """shell line before the command; such as `module load cuda`; may be given repeatedly"""
    notice: int | None
    """ask a stage to stop this long before its limit; Slurm may be a minute early"""
    max_requeues: int | None
    """requeue a task that ran out of time N times"""
    shard: Text | None
    """which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank"""
    overwrite: bool | None
    """first discard what the stage has written"""
    config: Text | None
    """TOML file with one table per stage; flags win"""
    submit: bool | None
    """also submit the jobs"""


class ExportOptions(TypedDict, total=False):
    to: Literal["trl-sdft", "trl-kto", "trl-dpo", "trl-sft", "verl", "openai", "review-csv", "rules"] | None
    """what to write; for TRL's SDFT, KTO, DPO or SFT trainer, verl, OpenAI's fine-tuning, people who decide, a model (the hints as rules of its system prompt)"""
    import_reviews: Text | None
    """read decisions back from what --to review-csv wrote"""
    include_neutral: bool | None
    """also imitate replies with reward 0; for trl-sft and openai"""
    max_rules: int | None
    """most rules to write; the model reads them in each request"""
    limit: int | None
    """only the first N sessions, for a cheap trial"""
    overwrite: bool | None
    """replace the file if it exists"""


class ForecastOptions(TypedDict, total=False):
    model: Text | None
    """the student: a model folder or a name on the hub"""
    hints: int | None
    """hints to test; more make the interval narrower"""
    judge_model: Text | None
    """the judge: a path, or its name on the server; default: the one that judged the run"""
    judge_url: Text | None
    """address of the judge's server; OpenAI-compatible, for example http://localhost:8000/v1"""
    api_key_env: Text | None
    """environment variable that holds the server's key; empty: no key is sent"""
    template_arg: Texts | None
    """argument of the chat template, NAME=VALUE; for example enable_thinking=false; may be given repeatedly"""
    max_new_tokens: int | None
    """longest reply"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    """weights and activations"""
    seed: int | None
    """seed of every random draw"""


class CalibrateOptions(TypedDict, total=False):
    other_run: Texts | None
    """run directory of another judge on the same turns, to compare; may be given repeatedly"""
    session_reward: Literal["last", "mean", "min"] | None
    """a session's reward, to compare with its label; mean: its sign"""
    kappa_weights: Literal["none", "linear", "quadratic"] | None
    """Cohen's kappa: how distance counts; none: +1 for -1 is as wrong as +1 for 0"""
    tolerance: float | None
    """accuracy and coverage that fewer votes may cost; each may fall by this"""
    seed: int | None
    """seed of every random draw"""


class CompareOptions(TypedDict, total=False):
    prompts: Text | None
    """JSONL file of held-out prompts with checks; for trainings that `opdkit eval` has not measured yet"""


class GateOptions(TypedDict, total=False):
    max_loss: float | None
    """do not ship if a loss of this share of right replies could go unseen in a domain; default: only say how large such a loss could be"""
    allow: Texts | None
    """ship even if this check fails; drift, length, cut_off, hint_echo, refusal, loop, broken_call, question, confirmation, no_call; may be given repeatedly"""


class BlameOptions(TypedDict, total=False):
    by: Text | None
    """what the blame of turns is summed over; session, model, language, source or metadata.NAME; default: the user if the log names one, else the session"""
    domain: Text | None
    """only what got worse in this domain; default: in all of them"""
    device: Text | None
    """torch device; auto: the launcher's GPU, else that of a Mac (mps), else the CPU"""


class ReportOptions(TypedDict, total=False):
    out: Text | None
    """the file to write; default: RUN/report.html, or RUN/report-redacted.html"""
    redacted: bool | None
    """without any text of users: numbers, curves and counts; names are numbered, no turn is shown whole"""
    turns: int | None
    """turns shown whole, token by token; typical ones, strong ones, and some of each kind"""
    list_size: int | None
    """turns in the searchable list; a sample of a longer run"""
    max_mb: float | None
    """size of the file; texts are cut, then fewer turns shown whole, until it fits"""


class ShowOptions(TypedDict, total=False):
    worst: int | None
    """N turns with the lowest sum of advantages"""
    best: int | None
    """N turns with the highest sum of advantages"""
    random: int | None
    """N turns drawn by --seed"""
    seed: int | None
    """seed of every random draw"""
    grep: Text | None
    """only turns that match a regular expression; in request, reply or hints"""
    status: Text | None
    """only turns with this status; of reward or hint: failed, leak, reviewed ..."""
    max_turns: int | None
    """most turns to list; not with --worst, --best and --random"""


class CheckOptions(TypedDict, total=False):
    json: bool | None
    """JSON on stdout instead of text"""
    deep: bool | None
    """also read all weights of the trained model"""
    clean: bool | None
    """remove what killed processes left behind; without it, they are only listed"""
    recompute: bool | None
    """remove damaged parts; and those computed from them, so that the stages compute them again"""
