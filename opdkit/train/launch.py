"""Processes of a training: checks before they start, their connection, and the stage that they share."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from datetime import timedelta

from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs, gather_object
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from opdkit.config.fields import JSON, fields_of
from opdkit.config.shared import check_launcher
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.load import resolve_device
from opdkit.store import stopping
from opdkit.store.atomic import host_name
from opdkit.store.part_writer import PartWriter, Stage
from opdkit.store.plans import check_upstream, stage_dir
from opdkit.store.progress_marks import find_live_claims
from opdkit.store.reviews import plan_inputs, read_decisions_in_targets
from opdkit.store.tables import METRICS, VALIDATIONS

# By default, W&B also sends console output, arguments, folder and machine; docs/privacy.md promises not to send them.
QUIET_WANDB = {"console": "off", "x_disable_meta": True, "x_disable_machine_info": True, "x_save_requirements": False}


def check_launch(config: TrainConfig) -> None:
    """Raise ConfigError or OpdkitError for a training that cannot run here. Called before a model is loaded."""
    config.check_inputs()
    check_launcher()
    check_upstream(config.run, ["teacher"])
    if config.shard != "auto":
        raise ConfigError("--shard: training is not cut into parts; for several processes use `accelerate launch -m "
                          "opdkit train ...` or `torchrun -m opdkit train ...`")  # fmt: skip
    # Two trainings of one run would mix up their checkpoints. Processes of the same launch all pass this check before
    # the main one claims the run. A claim from another host does not count: its process may have been killed there.
    others = [c for c in find_live_claims(stage_dir(config.run, "train") / ".tmp") if c.host == host_name()]
    if others and others[0].pid != os.getpid() and not config.dry_run:
        raise OpdkitError(f"process {others[0].pid} is training on {config.run}: wait until it is done, or stop it and "
                          "start again to resume from its last checkpoint")  # fmt: skip
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        if os.environ.get(f"ACCELERATE_USE_{kind}", "false").lower() == "true":
            raise ConfigError(f"the configuration of `accelerate launch` asks for {kind}, which opdkit does not use; "
                              "set distributed_type: MULTI_GPU there, and pass --sharding fsdp")  # fmt: skip


def start_accelerator(config: TrainConfig) -> Accelerator:
    """Connect the processes of this training. Raises ConfigError for a launch that does not fit the options.

    Accelerate is configured to leave the model's device, dtype and compilation as opdkit's own options set them.
    """
    on_cpu = resolve_device(config.device).type == "cpu"  # without cpu=True, processes on a CPU would train separately
    timeout = InitProcessGroupKwargs(timeout=timedelta(hours=1))  # others wait while the main one writes a large model
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no", dynamo_backend="no", device_placement=False,
                              log_with=config.tracker, project_dir=stage_dir(config.run, "train"),
                              kwargs_handlers=[timeout])  # fmt: skip
    kinds = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU)
    if accelerator.distributed_type not in kinds:
        raise ConfigError(f"training under {accelerator.distributed_type.value} is not supported: configure `accelerate"
                          " launch` with --multi_gpu, and where a GPU has no room pass --sharding fsdp")  # fmt: skip
    if accelerator.num_processes == 1 and config.sharding == "fsdp":
        raise ConfigError("--sharding fsdp needs several processes; start them with `accelerate launch "
                          "--multi_gpu --num_processes N -m opdkit train ...`")  # fmt: skip
    if accelerator.num_processes > 1 and config.device not in ("auto", "cpu"):
        raise ConfigError(f"--device {config.device}: with several processes the launcher gives each its device")
    return accelerator


def open_stage(config: TrainConfig, accelerator: Accelerator, models: JSON) -> Stage:
    """Open the stage: the main process writes its plan, then the others read it. Only the main process overwrites.

    `models`: option ("model", "reference") -> identity of that model.
    """
    inputs = models | plan_inputs(read_decisions_in_targets(config.run))
    with accelerator.main_process_first():
        own = dataclasses.replace(config, shard="0/1", overwrite=config.overwrite and accelerator.is_main_process)
        stage = Stage.open(own, "train", [METRICS, VALIDATIONS], parts=1, inputs=inputs, upstream=["teacher"])
    if config.tracker and stage.todo():
        # Texts without fixed choices are not sent: they may be paths.
        settings: JSON = {f.name: value for f in fields_of(TrainConfig)
                          if isinstance(value := getattr(config, f.name), (int, float)) or f.choices}  # fmt: skip
        try:
            accelerator.init_trackers("opdkit", settings, {"wandb": {"settings": QUIET_WANDB}})
        except Exception as error:  # no key, no network ...
            raise OpdkitError(f"--tracker {config.tracker}: {error}") from error
    return stage


@contextlib.contextmanager
def open_part_writer(stage: Stage, accelerator: Accelerator) -> Iterator[PartWriter]:
    """Yield the writer of `Stage.writing` in the main process. The others write nothing and wait until it commits.

    Raises stopping.Stopped in all processes if any of them was asked to stop.
    """
    if any(gather_object([stopping.is_requested()])):
        raise stopping.Stopped
    if accelerator.is_main_process:
        with stage.writing(0) as out:
            yield out
    else:
        yield PartWriter(stage.tables)
    accelerator.wait_for_everyone()


def check_same_step(steps: int) -> None:
    """Raise OpdkitError in all processes unless all of them resume after the same number of steps."""
    positions = sorted(set(gather_object([steps])))
    if len(positions) > 1:
        raise OpdkitError(f"the processes see different checkpoints, of steps {', '.join(map(str, positions))}: the "
                          "run directory must be on storage that all nodes share")  # fmt: skip


def leave(accelerator: Accelerator, model: nn.Module | None = None) -> None:
    """Close the trackers and the connections to the other processes. `model` cannot be trained further.

    The reducer and the logger of DistributedDataParallel are deleted first. As last owners of the process group, they
    would wait, holding the GIL, for gloo's threads to end. That is a deadlock if one of these waits for the GIL to free
    a tensor (https://github.com/pytorch/pytorch/issues/56297).
    """
    if isinstance(model, DistributedDataParallel):
        del model.logger, model.reducer
    accelerator.end_training()
