"""Tests of the student in training: no noise or unread weights, the optimizer's options, and how the model is saved."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from model_families import FAMILIES, SIZES, STATES, build
from safetensors.torch import load_file
from scored_runs import toy_sessions, train_and_kill, train_config, write_run

from opdkit.chat.template import Chat
from opdkit.errors import AnotherPlanError, ConfigError
from opdkit.model.load import load_tokenizer
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train.checkpoints import save_student
from opdkit.train.student import freeze_unread, load_student, make_optimizer, set_train_mode


def step(optimizer: torch.optim.Optimizer, model: torch.nn.Linear, gradient: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.98), (0.5, 0.75)])
def test_the_moments_decay_by_the_betas(beta1: float, beta2: float) -> None:
    """After gradients 1 and 0, the bias-corrected step is m / (1 - b1^2) over the root of v / (1 - b2^2)."""
    model = torch.nn.Linear(1, 1).double()
    config = train_config(Path("run"), Path("model"), beta1=beta1, beta2=beta2, weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    step(optimizer, model, 1.0)
    before = model.weight.item()
    step(optimizer, model, 0.0)
    m, v = beta1 * (1 - beta1) / (1 - beta1**2), beta2 * (1 - beta2) / (1 - beta2**2)
    assert before - model.weight.item() == pytest.approx(0.1 * m / v**0.5, rel=1e-6)


def test_weight_decay_pulls_on_matrices_only() -> None:
    model = torch.nn.Linear(1, 1).double()
    weight, bias = model.weight.item(), model.bias.item()
    optimizer = make_optimizer(model, train_config(Path("run"), Path("model"), weight_decay=0.5))
    step(optimizer, model, 0.0)
    assert model.weight.item() == pytest.approx(weight * (1 - 0.1 * 0.5))
    assert model.bias.item() == bias


@pytest.mark.parametrize("limit", [1e-3, 0.0])
def test_gradients_are_scaled_down_to_the_norm(run, plain_model_dir, monkeypatch, limit: float) -> None:
    """The optimizer gets gradients of norm --max-grad-norm, and the table has the norm before scaling; 0 is off."""
    norms = []

    def recording(model, config):
        optimizer = make_optimizer(model, config)
        gradients = lambda: [p.grad for p in model.parameters() if p.grad is not None]  # noqa: E731
        optimizer.register_step_pre_hook(lambda *_: norms.append(float(torch.nn.utils.get_total_norm(gradients()))))
        return optimizer

    monkeypatch.setattr(train, "make_optimizer", recording)
    train.run(train_config(run, plain_model_dir, max_grad_norm=limit, limit=4))
    before = [row["grad_norm"] for row in read_all(run, "metrics")]
    assert norms == pytest.approx([limit] * len(before) if limit else before, rel=1e-3)
    assert min(before) > 1e-2


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("SeedOssConfig", {"residual_dropout": 0.5, "attention_dropout": 0.5}),
        ("OPTConfig", {"dropout": 0.5, "word_embed_proj_dim": 32, "ffn_dim": 48}),
        ("Starcoder2Config", {"residual_dropout": 0.5, "embedding_dropout": 0.5}),
        ("PhimoeConfig", {"router_jitter_noise": 0.5, "num_local_experts": 4}),
    ],
)
def test_a_student_computes_what_the_model_does(tmp_path, name: str, rates: dict) -> None:
    """Dropout that a layer passes to a function and noise of a router are off, as when the old policy was scored."""
    config = getattr(transformers, name)(**SIZES, **rates)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    student = load_student(train_config(Path("run"), tmp_path))
    assert student.training
    ids = torch.arange(40)[None] % 300
    set_train_mode(student.eval())  # as after a validation
    torch.testing.assert_close(student(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize(("name", "sizes"), [
    ("Zamba2Config", {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1,
                      "mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "chunk_size": 8,
                      "adapter_rank": 4, "attention_hidden_size": 64, "attention_head_dim": 16, "use_mem_rope": True}),
    ("PhimoeConfig", {"num_local_experts": 4}),
])  # fmt: skip
def test_the_model_that_is_written_is_the_one_with_adapters(tmp_path, plain_tokenizer, name: str, sizes: dict) -> None:
    """A weight that several modules share would get the sum of their adapters, and a router returns a tuple."""
    build(name, sizes).save_pretrained(tmp_path / "m")
    plain_tokenizer.save_pretrained(tmp_path / "m")
    options = train_config(Path("run"), tmp_path / "m", lora_rank=2)
    student = load_student(options)
    for number, parameter in enumerate(p for p in student.parameters() if p.requires_grad):
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) / 10)
    ids = torch.arange(12)[None] % 300
    expected = student.eval()(input_ids=ids, use_cache=False).logits
    save_student(student, Chat(plain_tokenizer, {}), options, tmp_path / "out", "", main=True)
    written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    differences = (written(input_ids=ids, use_cache=False).logits - expected).abs()
    assert differences.amax(dim=-1).median() < 1e-3, "rounding may choose another expert at a token"


@pytest.mark.parametrize("rank", [0, 2])
def test_the_dtype_may_be_that_of_the_text_alone(tmp_path, plain_tokenizer, rank: int) -> None:
    """Models with images may name the dtype for their text only. Without it, they would be written in float32."""
    text = STATES["Qwen3.5"][1] | SIZES | {"layer_types": ["linear_attention", "full_attention"], "pad_token_id": 0}
    vision = {"hidden_size": 32, "num_heads": 4, "depth": 1, "intermediate_size": 32, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision | {"patch_size": 4})
    transformers.Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(tmp_path / "m")
    described = json.loads((tmp_path / "m" / "config.json").read_text())
    described.pop("dtype")
    described["text_config"]["dtype"] = "bfloat16"
    (tmp_path / "m" / "config.json").write_text(json.dumps(described))
    options = train_config(Path("run"), tmp_path / "m", lora_rank=rank)
    save_student(load_student(options), Chat(plain_tokenizer, {}), options, tmp_path / "out", "", main=True)
    written = load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_weights_that_no_text_reaches_are_frozen() -> None:
    """Otherwise several processes would wait for gradients of an image encoder, and it would get adapters."""
    model = build(*FAMILIES["grouped queries"])
    model.vision_tower = torch.nn.Linear(3, 3)
    freeze_unread(model)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"vision_tower.weight", "vision_tower.bias"}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("AfmoeConfig", {"num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2}),
        ("DeepseekV32Config", FAMILIES["DeepSeek-V3"][1] | {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 8}),
    ],
)
def test_every_weight_in_training_gets_a_gradient(tmp_path, name: str, sizes: dict, rank: int) -> None:
    """Otherwise several processes would wait for it, and end in an error. Such weights only choose experts or keys."""
    build(name, sizes).save_pretrained(tmp_path)
    student = load_student(train_config(Path("run"), tmp_path, lora_rank=rank))
    student(input_ids=torch.arange(20)[None], use_cache=False).logits.sum().backward()
    assert {name for name, p in student.named_parameters() if p.requires_grad and p.grad is None} == set()


def test_quantized_weights_are_not_trained(plain_model_dir, monkeypatch) -> None:
    loaded = build(*FAMILIES["grouped queries"])
    loaded.is_quantized = True
    monkeypatch.setattr("opdkit.train.student.load_model", lambda *_, **__: loaded)
    with pytest.raises(ConfigError, match="unquantized"):
        load_student(train_config(Path("run"), plain_model_dir))


def test_memory_options_change_on_the_way(run, plain_model_dir, monkeypatch) -> None:
    """Other memory options resume from the checkpoint; another plan is refused, and the error counts what is lost."""
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    options = {"batch_turns": 8, "epochs": 2}
    train_and_kill(train_config(run, plain_model_dir, **options), 2, monkeypatch)
    assert [path.name for path in (run / "train/checkpoints").glob("step-*")] == ["step-00000002.pt"]
    with pytest.raises(AnotherPlanError, match=r"has written \(1 file\)"):
        train.run(train_config(run, plain_model_dir, **options, learning_rate=1e-9))
    seen, step = [], train.take_optimizer_step
    monkeypatch.setattr(train, "take_optimizer_step", lambda *given: seen.append(1) or step(*given))
    train.run(train_config(run, plain_model_dir, **options, micro_batch_tokens=64, gradient_checkpointing=True))
    assert len(list(read_all(run, "metrics"))) == len(seen) + 2


def test_what_stays_in_float32_is_saved_in_float32(tmp_path, plain_model_dir, monkeypatch) -> None:
    """Saved weights have the dtype of the model's own files, except those that its class keeps in float32."""
    monkeypatch.setattr(transformers.Qwen3ForCausalLM, "_keep_in_fp32_modules_strict", {"q_norm"}, raising=False)
    half = Path(shutil.copytree(plain_model_dir, tmp_path / "half"))
    transformers.AutoModelForCausalLM.from_pretrained(plain_model_dir, dtype=torch.bfloat16).save_pretrained(half)
    (half / "preprocessor_config.json").write_text("{}")
    (half / "tokenizer.model").write_bytes(b"of SentencePiece")  # beside tokenizer.json, which is read
    (half / "LICENSES").mkdir()  # as of REUSE, and no file to copy
    run = write_run(tmp_path / "run", half, toy_sessions(6))
    train.run(train_config(run, half, batch_turns=8, epochs=1))
    saved = load_file(run / "train/model/model.safetensors")
    exact = {name for name, tensor in saved.items() if tensor.dtype == torch.float32}
    assert exact == {name for name in saved if "q_norm" in name}
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32, torch.bfloat16}
    assert (run / "train/model/preprocessor_config.json").read_text() == "{}"
    assert (run / "train/model/tokenizer.model").read_bytes() == b"of SentencePiece"
    assert load_tokenizer(str(run / "train/model"))("Hi")["input_ids"] == load_tokenizer(str(half))("Hi")["input_ids"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_beside_the_adapters_stay_as_they_were(tmp_path, plain_model_dir, dtype: torch.dtype) -> None:
    """Training computes in bfloat16, which would round them; this holds after each epoch and at the end."""
    model = Path(shutil.copytree(plain_model_dir, tmp_path / "model"))
    transformers.AutoModelForCausalLM.from_pretrained(plain_model_dir, dtype=dtype).save_pretrained(model)
    run = write_run(tmp_path / "run", model, toy_sessions(6))
    train.run(train_config(run, model, dtype="bfloat16", lora_rank=2, batch_turns=8, keep_epochs=True))
    before = load_file(model / "model.safetensors")
    for folder in ("model", "epochs/001/model"):
        saved = load_file(run / "train" / folder / "model.safetensors")
        assert {tensor.dtype for tensor in saved.values()} == {dtype}
        changed = {name for name, tensor in saved.items() if not torch.equal(tensor, before[name])}
        assert changed
        assert all(name.endswith("_proj.weight") for name in changed)


@pytest.mark.parametrize("family", ["Mamba-2", "Nemotron-H", "Falcon-H1", "Jamba", "Llama 4", "Qwen3-Next"])
def test_adapters_go_where_they_are_read(tmp_path, family: str) -> None:
    """A weight that its layer would read past an adapter gets none; the layer's other weights get one."""
    build(*STATES[family]).save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # users cannot mend what peft does
        student = load_student(train_config(Path("run"), tmp_path, lora_rank=2))
    names = {name.split(".lora_A")[0].rpartition(".")[2] for name, _ in student.named_parameters() if "lora_A" in name}
    assert names
    assert ("out_proj" in names) == (family == "Qwen3-Next")
    assert "router" not in names
    student(input_ids=torch.arange(12)[None]).logits.sum().backward()
    assert all(p.grad is not None for name, p in student.named_parameters() if "lora_B" in name)
