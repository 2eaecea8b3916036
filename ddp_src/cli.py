"""`python -m ddp_src.train`: read the options, train where the launcher put us, report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from ddp_src import errors, runfolder
from ddp_src.config import Config, parse
from ddp_src.data import fetch
from ddp_src.distributed import choose_backend, process_group, run_on_main
from ddp_src.launch import LaunchError, RankFailed, spawn
from ddp_src.report import report
from ddp_src.train import train, train_on_rank


def main(argv: Sequence[str] | None = None) -> int:
    """Train and report; the status is 0, 2 for a mistake in options or files, 1 for a failed rank."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleaned up
    try:
        _run(argv)
        return 0
    except errors.UserError as error:
        return _say(str(error), 2)
    except RankFailed as error:
        if hasattr(errors, error.error_type):
            return _say(error.message, 2)
        return _say(f"RankFailed: {error}", 1)
    except LaunchError as error:
        return _say(f"{type(error).__name__}: {error}", 1)
    except KeyboardInterrupt:
        return _say("stopped: go on with --resume\n已停止：用 --resume 可以接着训练", 130)


def _say(text: str, status: int) -> int:
    print(text, file=sys.stderr)
    return status


def _run(argv: Sequence[str] | None) -> None:
    launched = "RANK" in os.environ
    ranks = int(os.environ["WORLD_SIZE"]) if launched else torch.cuda.device_count() or 2
    config, resume = parse(argv, default_nproc=ranks)
    if launched:
        _train_under_torchrun(config, resume)
        return
    choose_backend(config.backend, config.nproc)  # refused before there is a folder
    fetch(config.data)  # here, since a download may take longer than a rank may wait for another
    _open_folder(config, resume=resume)
    if config.nproc == 1:
        train_on_rank(0, config, resume)
    else:
        args = (config, resume)
        spawn(train_on_rank, args, config.nproc, backend=config.backend, log_dir=config.out)
    report(config)


def _train_under_torchrun(config: Config, resume: bool) -> None:
    if config.nproc != int(os.environ["WORLD_SIZE"]):
        raise errors.ConfigError(
            f"{config.nproc} ranks are wanted and the launcher started {os.environ['WORLD_SIZE']}: "
            "give torchrun the number, and leave --nproc out.",
            f"需要 {config.nproc} 个 rank，而启动器启动了 {os.environ['WORLD_SIZE']} 个："
            "请把数目交给 torchrun，不要写 --nproc。",
        )
    with process_group(config.backend) as place:
        config = replace(config, out=run_on_main(lambda: _open_folder(config, resume=resume)))
        train(config, place, resume=resume)
    if place.is_main:
        report(config)


def _open_folder(config: Config, *, resume: bool) -> str:
    """Describe the run in its folder, which is made for a new one; returns the folder."""
    if resume:
        runfolder.describe(config.out, asdict(config))
    else:
        runfolder.create(config.out, asdict(config))
    return config.out
