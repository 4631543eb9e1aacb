"""Tests of checkpoints: they are complete or absent whenever the process dies, and reading a file runs no code."""

import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
from scored_runs import train_config

from opdkit.errors import OpdkitError
from opdkit.train import checkpoints
from opdkit.train import stage as train

# -- complete or absent ---------------------------------------------------------------------------------------------


def student() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.AdamW(model.parameters())


def save_and_die(folder: Path, where: str) -> None:
    """Save a second checkpoint in a child process that is killed half-way through the file, or before the file moves.

    An exception would not do, because it would clean up.
    """
    process = os.fork()
    if process == 0:
        write = torch.save

        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def write_half(state: object, handle) -> None:
            write(state, handle)
            handle.flush()
            os.ftruncate(handle.fileno(), handle.tell() // 2)
            die()

        if where == "half-way":
            torch.save = write_half
        else:
            checkpoints.move_into_place = die
        model, optimizer = student()
        checkpoints.save(folder, model, optimizer, [{"step": 1}, {"step": 2}], {}, main=True)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("where", ["half-way", "before it moves"])
def test_a_kill_leaves_the_checkpoint_before_it_and_no_half_of_the_next(tmp_path, capsys, where) -> None:
    model, optimizer = student()
    checkpoints.save(tmp_path, model, optimizer, [{"step": 1}], {}, main=True)
    save_and_die(tmp_path, where)
    assert [path.name for path in tmp_path.glob("step-*.pt")] == ["step-00000001.pt"]
    state = checkpoints.read_newest(tmp_path)
    assert state is not None
    assert state["rows"] == [{"step": 1}]
    assert all(torch.equal(state["weights"][name], p) for name, p in model.named_parameters())
    assert not capsys.readouterr().err, "a half-written file was found and skipped"
    checkpoints.save(tmp_path, model, optimizer, [{"step": 1}, {"step": 2}], {}, main=True)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002.pt"]


def test_an_interrupted_save_leaves_the_checkpoint_before_it(tmp_path, monkeypatch) -> None:
    model, optimizer = student()
    checkpoints.save(tmp_path, model, optimizer, [{"step": 1}], {}, main=True)

    def interrupted(_state, handle):
        handle.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, model, optimizer, [{"step": 1}, {"step": 2}], {}, main=True)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.pt"]


# -- data only ------------------------------------------------------------------------------------------------------


class Touch:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mknod, (str(self.path),)


def write_hostile(path: Path, mark: Path, *, zipped: bool) -> None:
    """Write a checkpoint whose metrics hold an object that creates `mark` when it is unpickled."""
    model, optimizer = student()
    weights = dict(model.named_parameters())
    state = {"weights": weights, "optimizer": optimizer.state_dict(), "rows": [{"step": 1, "loss": Touch(mark)}]}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path, _use_new_zipfile_serialization=zipped)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_not_run(tmp_path, zipped) -> None:
    path, mark = tmp_path / "checkpoints" / "step-00000004.pt", tmp_path / "was-run"
    write_hostile(path, mark, zipped=zipped)
    if zipped:  # a complete file is refused; what is not even an archive counts as damaged
        with pytest.raises(OpdkitError, match=r"step-00000004\.pt"):
            checkpoints.read_newest(path.parent)
    else:
        assert checkpoints.read_newest(path.parent) is None
    assert not mark.exists()
    assert path.exists()
    torch.load(path, weights_only=False)
    assert mark.exists(), "the file is harmless, and this test shows nothing"


def test_a_training_does_not_resume_from_a_hostile_checkpoint(run, plain_model_dir, tmp_path) -> None:
    path, mark = run / "train" / "checkpoints" / "step-00000001.pt", tmp_path / "was-run"
    (run / "train" / "metrics").mkdir(parents=True)  # so the folder is a training's
    write_hostile(path, mark, zipped=True)
    with pytest.raises(OpdkitError, match=r"step-00000001\.pt"):
        train.run(train_config(run, plain_model_dir))
    assert not mark.exists()
    assert not (run / "train" / "model").exists()
    assert path.exists()
    path.unlink()
    assert train.run(train_config(run, plain_model_dir)).parts_done == 1


def test_a_damaged_checkpoint_is_skipped(tmp_path, capsys) -> None:
    model, optimizer = student()
    checkpoints.save(tmp_path, model, optimizer, [{"step": 1}], {}, main=True)
    whole = (tmp_path / "step-00000001.pt").read_bytes()
    (tmp_path / "step-00000002.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "step-00000003.pt").write_bytes(b"")
    (tmp_path / "step-00000004.pt").write_bytes(pickle.dumps({"rows": []}))
    state = checkpoints.read_newest(tmp_path)
    assert state is not None
    assert state["rows"] == [{"step": 1}]
    said = capsys.readouterr().err
    assert all(f"step-0000000{n}.pt" in said for n in (2, 3, 4))
