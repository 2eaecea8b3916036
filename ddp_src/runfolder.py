"""The folder of one run: its configuration, versions and hardware, logs, checkpoint and pictures."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import datetime
from pathlib import Path

from ddp_src.errors import CheckpointError
from ddp_src.files import whole_file

CONFIG, HARDWARE, CHECKPOINT = "config.json", "hardware.json", "checkpoint.pt"


def fresh_name() -> str:
    """`runs/<date-time>`, free to be created."""
    name = stem = datetime.now().strftime("runs/%Y-%m-%d_%H%M%S")
    number = 1
    while Path(name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name


def newest() -> str:
    """The run in `runs/` that was started last; raises `CheckpointError` where there is none."""
    runs = [path.parent for path in Path("runs").glob(f"*/{CONFIG}")]
    if not runs:
        raise CheckpointError(
            f"there is no run in {Path('runs').absolute()}: give the run's folder, --resume FOLDER.",
            f"{Path('runs').absolute()} 里没有任何训练：请用 --resume FOLDER 指明训练所在的文件夹。",
        )
    return str(max(runs, key=lambda run: (run / CONFIG).stat().st_mtime_ns))


def create(folder: str, config: dict) -> None:
    """Make the folder of a new run and describe the run in it.

    Raises `CheckpointError` if it cannot be written or holds a run already, which is never overwritten.
    """
    path = Path(folder)
    if (path / CONFIG).exists():
        raise CheckpointError(
            f"{folder} holds a run already: continue it with --resume {folder}, or choose another --out.",
            f"{folder} 里已经有一次训练：请用 --resume {folder} 接着训练，或换一个 --out。",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    describe(folder, config)


def describe(folder: str, config: dict) -> None:
    """Write what is run, and on what. Raises `CheckpointError` if it cannot be written."""
    try:
        write_json(Path(folder, HARDWARE), hardware())
        write_json(Path(folder, CONFIG), config)
    except OSError as error:
        raise cannot_write(folder, error) from None


def read_config(folder: str) -> dict:
    """The configuration that the run in `folder` was started with."""
    try:
        return json.loads(Path(folder, CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CheckpointError(
            f"{folder} holds no run: {CONFIG} is missing or unreadable there.",
            f"{folder} 里没有训练记录：缺少 {CONFIG}，或它无法读取。",
        ) from None


def write_json(path: Path, value: dict) -> None:
    """Write `value` as JSON, whole or not at all. Raises OSError."""
    with whole_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def cannot_write(path: str | Path, error: OSError) -> CheckpointError:
    """The sentence for a full disk, a read-only folder, a file in the folder's place."""
    return CheckpointError(
        f"cannot write {path} ({error.strerror}): choose a folder you can write to with --out, "
        "or make room on the disk.",
        f"无法写入 {path}（{error.strerror}）：请用 --out 换一个可写的文件夹，或腾出磁盘空间。",
    )


def hardware() -> dict:
    """Versions and hardware of this machine, as plain values."""
    import torch

    from ddp_src.distributed import usable_cores

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "gpus": gpus,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
