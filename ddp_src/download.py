"""Getting digits by name: MNIST is downloaded once, whole or not at all, and by one rank of each machine."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import torch.distributed as dist

from ddp_src.digit_files import Digits
from ddp_src.errors import DataError
from ddp_src.sources import read_digits

SILENCE = 20.0  # seconds a mirror may send nothing before the next one is tried
_MIRROR_FAILS = (OSError, RuntimeError, ValueError, HTTPException, DataError)


def load_digits(source: str = "embedded", *, train: bool) -> Digits:
    """The training (`train=True`) or test digits of "embedded", "mnist", a `.pth` file or a folder.

    "mnist" is downloaded unless it is there already. Raises DataError.
    """
    if source != "mnist":
        return read_digits(source, train=train)
    folder = data_folder()
    if not (folder / "MNIST").exists():
        _download(folder)
    try:
        return read_digits(folder, train=train)
    except DataError as error:
        broken = folder / "MNIST"
        raise DataError(
            f"{error.en} Or delete {broken}, and MNIST will be downloaded again.",
            f"{error.zh}也可以删除 {broken}，MNIST 会重新下载。",
        ) from error


def fetch(source: str) -> None:
    """Make sure that `source` loads, downloading it if need be. Raises DataError."""
    for train in (True, False):
        load_digits(source, train=train)


def fetch_once(source: str) -> None:
    """`fetch` on one rank of each machine while the others wait; called on every rank of the group.

    A failure is the same DataError on every rank. The ranks wait in a collective, so a download that may
    outlast the group's timeout is better fetched before the ranks start. Without a group, plain `fetch`.
    """
    if not dist.is_initialized():
        fetch(source)
        return
    failure = None
    if int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0:
        try:
            fetch(source)
        except DataError as error:
            failure = error
    failures: list[DataError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure)
    for failure in failures:
        if failure is not None:
            raise failure


def data_folder() -> Path:
    """Where MNIST is kept: DDP_DATA_DIR, or `data` beside the package."""
    return Path(os.environ.get("DDP_DATA_DIR") or Path(__file__).parents[1] / "data").expanduser()


def _download(folder: Path) -> None:
    """Put MNIST into `folder`, in torchvision's layout, from the first mirror that sends it right."""
    print(f"Downloading MNIST (12 MB) to {folder} | 正在下载 MNIST（12 MB）到 {folder}", file=sys.stderr)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mnist-", dir=folder) as temporary:
            _download_from_any_mirror(Path(temporary))
            _move(Path(temporary) / "MNIST", folder / "MNIST")
    except OSError as error:
        raise DataError(
            f"MNIST cannot be saved in {folder} ({error.strerror}): set DDP_DATA_DIR to another folder, "
            "or use --data embedded.",
            f"MNIST 无法存入 {folder}（{error.strerror}）：请把 DDP_DATA_DIR 设为别的文件夹，"
            "或改用 --data embedded。",
        ) from error
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # goes only if it stayed empty


def _download_from_any_mirror(root: Path) -> None:
    from torchvision.datasets import MNIST

    own = os.environ.get("DDP_MNIST_MIRROR")
    failures = []
    for mirror in [own, *MNIST.mirrors] if own else MNIST.mirrors:
        try:
            with _quiet_and_impatient():
                _download_from(mirror, root)
            return
        except _MIRROR_FAILS as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            failures.append(f"{mirror}: {str(error).rstrip('.') or type(error).__name__}")
    reasons = "; ".join(failures)
    raise DataError(
        f"MNIST could not be downloaded ({reasons}): check the network, or use --data embedded, "
        "the digits that come with the project.",
        f"MNIST 下载失败（{reasons}）：请检查网络，或改用项目自带的数字：--data embedded。",
    )


def _download_from(mirror: str, root: Path) -> None:
    # Not MNIST(download=True): it gives up, with mirrors left, when one cuts the connection.
    from torchvision.datasets import MNIST
    from torchvision.datasets.utils import download_and_extract_archive

    raw = root / "MNIST" / "raw"
    for name, md5 in MNIST.resources:
        download_and_extract_archive(f"{mirror.rstrip('/')}/{name}", raw, filename=name, md5=md5)
    for train in (True, False):
        read_digits(root, train=train)


@contextlib.contextmanager
def _quiet_and_impatient() -> Iterator[None]:
    """No progress bars of attempts that may fail, and no waiting for ever, which is urllib's default."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        socket.setdefaulttimeout(before)


def _move(finished: Path, target: Path) -> None:
    """Rename, unless another process was first: then its copy, which was checked as well, is used."""
    try:
        os.replace(finished, target)
    except OSError:
        if not target.exists():
            raise
