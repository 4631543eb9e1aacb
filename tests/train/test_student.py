"""Options of the optimizer arrive: betas, weight decay, and the norm that gradients are scaled down to."""

from pathlib import Path

import pytest
import torch
from scored_runs import train_config

from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train.student import make_optimizer


def step(optimizer: torch.optim.Optimizer, model: torch.nn.Linear, gradient: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.98), (0.5, 0.75)])
def test_the_moments_decay_by_the_betas(beta1: float, beta2: float) -> None:
    """By hand: a gradient of 1, then of 0. Bias-corrected, m / (1 - b1^2) over the root of v / (1 - b2^2)."""
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
    """The optimizer gets gradients of --max-grad-norm, the table the norm before; 0 is off."""
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
