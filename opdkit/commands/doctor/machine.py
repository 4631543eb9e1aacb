"""Findings about the machine: versions of packages, devices, memory, disk space for a run."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil
import torch
from packaging.requirements import Requirement

from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding, format_gb
from opdkit.console import counted
from opdkit.errors import ConfigError
from opdkit.model.load import resolve_device

_LITTLE_ROOM = 5e9  # bytes


def versions() -> Iterator[Finding]:
    """Yield findings about Python and the packages that opdkit needs: versions, and whether they are supported."""
    installed_versions = [f"opdkit {version('opdkit')}", f"Python {sys.version.split()[0]}"]
    for requirement in map(Requirement, requires("opdkit") or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield Finding("packages", PROBLEM, f"{requirement.name} is missing", f'pip install "{requirement}"')
            continue
        installed_versions.append(f"{requirement.name} {installed}")
        if not requirement.specifier.contains(installed, prereleases=True):
            what = f"{requirement.name} is {installed}, opdkit was made for {requirement.specifier}"
            yield Finding("packages", PROBLEM, what, f'pip install "{requirement}"')
    yield Finding("packages", OK, ", ".join(installed_versions))
    for name, flag in (("peft", "--lora-rank"), ("bitsandbytes", "--load-in-4bit")):
        try:
            yield Finding("packages", OK, f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("packages", NOTE, f"{name} is missing: no {flag}", f"pip install {name}")


def devices(device: str) -> Iterator[Finding]:
    """Yield findings about cores, memory, GPUs, and the device that torch uses."""
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free_memory = f"{format_gb(memory.available)} of {format_gb(memory.total)} memory free"
    yield Finding("CPU", OK, f"{counted(cores, 'core')}, {free_memory}")
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        name = torch.cuda.get_device_name(i)
        yield Finding("GPU", OK, f"cuda:{i} {name}, {format_gb(free)} of {format_gb(total)} memory free")
        if torch.cuda.get_device_capability(i) < (8, 0):
            yield Finding("GPU", NOTE, f"cuda:{i} computes bfloat16 slowly", "--dtype float16 for judge and teacher")
    if not torch.cuda.is_available():
        if torch.backends.mps.is_available():
            yield Finding("GPU", OK, "mps: the GPU of a Mac, which shares the main memory")
        elif shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia").exists():
            yield Finding("GPU", NOTE, "none: small models only", "judge with --judge endpoint, the rest on a GPU node")
        elif torch.version.cuda is None:
            yield Finding("GPU", PROBLEM, f"there is an NVIDIA driver, but torch {torch.__version__} is built for CPUs",
                          "install torch for your CUDA version: https://pytorch.org/get-started")  # fmt: skip
        else:
            remedy = "does nvidia-smi list one? Is CUDA_VISIBLE_DEVICES empty, or the driver older than this CUDA?"
            yield Finding("GPU", PROBLEM, f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU", remedy)
    try:
        yield Finding("device", OK, f"--device {device} is {resolve_device(device)}")
    except ConfigError as error:
        yield Finding("device", PROBLEM, str(error), "--device auto takes what is there")


def room(run: Path) -> Iterator[Finding]:
    """Yield a finding about the run directory: whether it can be written to, and its free space."""
    there = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not there.is_dir():
        yield Finding("run", PROBLEM, f"{there} is a file", "name a directory that does not exist yet")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("run", PROBLEM, f"{there} cannot be written", "another directory, or make it writable")
        return
    free = shutil.disk_usage(there).free
    state = NOTE if free < _LITTLE_ROOM else OK
    remedy = "targets with --top-k 20 take about 0.3 kB per reply token, a checkpoint 12 bytes per parameter"
    yield Finding("run", state, f"{run}: {format_gb(free)} free", remedy if state == NOTE else "")
