"""The options of a training run: typed, frozen, checked, and read from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ddp_src import runfolder
from ddp_src.errors import CheckpointError, ConfigError

EPILOG = """\
examples:
  python -m ddp_src.train                             the embedded digits, on all GPUs or 2 CPU ranks
  python -m ddp_src.train --epochs 3 --model cnn      a shorter run of a larger model
  python -m ddp_src.train --resume                    go on with the newest run where it stopped
  torchrun --nproc-per-node 2 -m ddp_src.train        the same program under torchrun
"""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run. `batch_size` is per rank; `out` is the run folder, None to write nothing."""

    epochs: int = 10
    batch_size: int = 128
    lr: float = 0.001
    seed: int = 0
    model: str = "simple"
    data: str = "embedded"
    dtype: str = "float32"
    nproc: int = 1
    backend: str = "auto"
    checkpoint_every: int = 0
    out: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "nproc"):
            _require(name, getattr(self, name), "at least 1", "至少为 1", getattr(self, name) >= 1)
        for name in ("seed", "checkpoint_every"):
            _require(name, getattr(self, name), "0 or more", "不小于 0", getattr(self, name) >= 0)
        _require("lr", self.lr, "greater than 0", "大于 0", 0 < self.lr < float("inf"))


# A run can be continued with more epochs, but not as another experiment.
FIXED_WHEN_RESUMED = ("batch_size", "lr", "seed", "model", "data", "dtype", "nproc")


def _require(name: str, value: object, must: str, must_zh: str, holds: bool) -> None:
    if not holds:
        option = "--" + name.replace("_", "-")
        raise ConfigError(
            f"{option} is {value}: it must be {must}.", f"{option} 是 {value}：它必须{must_zh}。"
        )


def parse(argv: Sequence[str] | None, *, default_nproc: int) -> tuple[Config, bool]:
    """Read the command line; return the configuration and whether it continues an earlier run.

    Raises `ConfigError` for values that cannot work, or that differ from the run to be continued.
    """
    given = vars(_parser().parse_args(argv))
    resume = given.pop("resume", None)
    if resume is None:
        return Config(**{"nproc": default_nproc, "out": runfolder.fresh_name(), **given}), False
    folder = runfolder.newest() if resume == "newest" else resume
    saved = _saved(folder)
    for name in FIXED_WHEN_RESUMED:
        if given.get(name, getattr(saved, name)) != getattr(saved, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{folder} was started with {option} {getattr(saved, name)}, not {given[name]}: "
                "leave the option out, or start a new run without --resume.",
                f"{folder} 开始时用的是 {option} {getattr(saved, name)}，不是 {given[name]}："
                "请去掉这个选项，或不加 --resume 另开一次训练。",
            )
    return replace(saved, **{**given, "out": folder}), True


def _saved(folder: str) -> Config:
    try:
        return Config(**{**runfolder.read_config(folder), "out": folder})
    except TypeError as error:
        raise CheckpointError(
            f"{folder} was written by another version of this program ({error}): start a new run.",
            f"{folder} 是由本程序的另一个版本写的（{error}）：请另开一次训练。",
        ) from None


def _parser() -> argparse.ArgumentParser:
    """Options left out are absent from the result, so that a resumed run keeps its own values."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_src.train",
        description="Train a digit classifier with DistributedDataParallel on all local devices.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    default = {field.name: field.default for field in fields(Config)}

    def add(*names: str, about: str, **how: object) -> None:
        name = names[0].strip("-").replace("-", "_")
        shown = f" (default: {default[name]})" if default.get(name) not in (None, 0, True) else ""
        parser.add_argument(*names, help=about + shown, **how)

    add("--epochs", type=int, metavar="N", about="how often to go through the training set")
    add(
        "--batch-size",
        type=int,
        metavar="N",
        about="samples per step on EACH rank; the global batch is N × ranks",
    )
    add("--lr", type=float, metavar="X", about="learning rate of Adam")
    add("--seed", type=int, metavar="N", about="first weights and shuffling follow from it (default: 0)")
    add("--model", choices=("simple", "cnn"), about="784→100→10, or a CNN of 1.2 million parameters")
    add(
        "--data",
        metavar="SOURCE",
        about="embedded: 5,000 digits, no download; mnist: download all 70,000 once; "
        "or the path of a .pth file or of a folder of original MNIST files",
    )
    add("--dtype", choices=("float32", "float64"), about="number type of weights and images")
    parser.add_argument(
        "--nproc", "--nproc-per-node", type=int, metavar="N", dest="nproc",
        help="ranks to start on this machine (default: one per GPU, or 2 on the CPU); "
        "under torchrun it is torchrun that decides",
    )  # fmt: skip
    add("--backend", choices=("auto", "gloo", "nccl"), about="auto: nccl when each rank has a GPU, else gloo")
    add(
        "--checkpoint-every", type=int, metavar="N",
        about="save after every N steps too; the end of an epoch always saves",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FOLDER", help="the run folder (default: runs/<date-time>)")
    parser.add_argument(
        "--resume", nargs="?", const="newest", metavar="FOLDER",
        help="go on with the run in FOLDER, or with the newest one in runs/",
    )  # fmt: skip
    return parser
