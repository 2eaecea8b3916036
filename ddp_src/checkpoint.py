"""Save a run so that it can be stopped at any moment, and continue it bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ddp_src.distributed import unwrap
from ddp_src.errors import CheckpointError
from ddp_src.files import whole_file
from ddp_src.runfolder import CHECKPOINT, cannot_write


def save_checkpoint(folder: str, *, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write `<folder>/checkpoint.pt` after `step` training steps. All ranks call it, rank 0 writes.

    A reader sees the old file or the new one, never half of one. Raises `CheckpointError` when the disk
    is full or read-only; the old file is then still there.
    """
    generators = _of_all_ranks(_generators())
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    state = {
        "step": step,
        "model": unwrap(model).state_dict(),
        "optimizer": optimizer.state_dict(),
        "generators": generators,
    }
    write_checkpoint(state, Path(folder, CHECKPOINT))


def load_checkpoint(folder: str, *, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put model, optimizer and this rank's random generators where they were; return the steps done.

    Every rank calls it, after the model was wrapped: DDP copies rank 0's weights only once, on wrapping.
    A folder without a checkpoint yields 0. Raises `CheckpointError` for a file that cannot be used.
    """
    path = Path(folder, CHECKPOINT)
    if not path.exists():
        return 0
    try:
        # To the CPU first: the file remembers the writer's device, which is not this rank's.
        state = torch.load(path, map_location="cpu", weights_only=True)
        unwrap(model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        _set_generators(state["generators"][dist.get_rank() if dist.is_initialized() else 0])
        return state["step"]
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{path} cannot be continued from ({reason}): it is damaged or belongs to another program.",
            f"无法从 {path} 恢复训练（{reason}）：文件已损坏，或不是本程序写的。",
        ) from error


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    """`torch.save`, whole or not at all; raises `CheckpointError` if the file cannot be written."""
    try:
        with whole_file(path) as file:
            torch.save(state, file)
    except OSError as error:
        raise cannot_write(path, error) from None
    except RuntimeError as error:  # torch's zip writer covers the system's reason with its own
        if not isinstance(error.__context__, OSError):
            raise
        raise cannot_write(path, error.__context__) from None


def _of_all_ranks(value: object) -> list:
    if not dist.is_initialized():
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _generators() -> dict:
    """The state of every random generator of this process, as plain values and tensors."""
    name, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_generators(state: dict) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
