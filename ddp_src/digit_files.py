"""One file of digits: reading it safely, checking it, and saying in one sentence what is wrong with it."""

from __future__ import annotations

import gzip
import math
import pickle
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ddp_src.errors import DataError

IDX_IMAGES, IDX_LABELS = 2051, 2049
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Digits(NamedTuple):
    """`images` uint8 [N, 28, 28] and `labels` int64 [N], from 0 to 9."""

    images: Tensor
    labels: Tensor


def check_digits(images: Tensor, labels: Tensor, source: Path) -> Digits:
    """The digits, if shapes, dtypes, lengths and labels are right, else a DataError that names `source`."""

    def refuse(en: str, zh: str) -> DataError:
        return DataError(f"{source}: {en}", f"{source}：{zh}")

    if images.dtype != torch.uint8 or images.dim() != 3 or images.shape[1:] != (28, 28):
        raise refuse(
            f"images must be torch.uint8 [N, 28, 28], these are {images.dtype} {list(images.shape)}.",
            f"图像应为 torch.uint8 [N, 28, 28]，这里却是 {images.dtype} {list(images.shape)}。",
        )
    if labels.dtype not in _INTEGERS or labels.dim() != 1:
        raise refuse(
            f"labels must be whole numbers of shape [N], these are {labels.dtype} {list(labels.shape)}.",
            f"标签应为形状 [N] 的整数，这里却是 {labels.dtype} {list(labels.shape)}。",
        )
    if len(images) != len(labels):
        raise refuse(
            f"there are {len(images)} images but {len(labels)} labels, each image needs one label.",
            f"有 {len(images)} 幅图像，却有 {len(labels)} 个标签；每幅图像要有一个标签。",
        )
    if len(images) == 0:
        raise refuse("it holds no samples, give at least one.", "里面一个样本也没有，请至少给出一个。")
    outside = (labels < 0) | (labels > 9)
    if outside.any():
        position = int(outside.nonzero()[0])
        raise refuse(
            f"label {int(labels[position])} at position {position} is not a digit, labels go from 0 to 9.",
            f"位置 {position} 的标签是 {int(labels[position])}，标签应在 0 到 9 之间。",
        )
    return Digits(images.contiguous(), labels.long().contiguous())


def read_pth(path: str | Path) -> Digits:
    """All digits of a `.pth` file that holds a tuple (images, labels). Raises DataError."""
    path = Path(path).expanduser()
    require_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file that is refused, the sentence says enough
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can raise anything
        # Not chained: torch's own message advises weights_only=False, which runs code from the file.
        raise _explain_unreadable(path, error) from None
    parts = content if isinstance(content, (tuple, list)) else [content]
    if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
        kind = type(content).__name__
        raise DataError(
            f"{path} holds a {kind} that is not a pair of tensors: "
            "save it with torch.save((images, labels), path).",
            f"{path} 里存的 {kind} 不是一对张量：请用 torch.save((images, labels), path) 保存。",
        )
    return check_digits(*parts, path)


def read_idx(path: Path, magic: int) -> Tensor:
    """One original MNIST file, plain or `.gz`: uint8 [N, 28, 28] or [N]. Raises DataError.

    The four-byte `magic` number gives the kind, its last byte the number of dimensions, four bytes each.
    """
    require_file(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read, it may be cut short ({error}): get it again.",
            f"{path} 无法读取，可能不完整（{error}）：请重新获取。",
        ) from error
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise DataError(
            f"{path} is not MNIST's file of that name: it begins with {found} instead of {magic}.",
            f"{path} 不是 MNIST 的同名文件：开头的数是 {found}，应为 {magic}。",
        )
    header = 4 * (1 + magic % 256)
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    size = header + math.prod(shape)
    if len(content) != size:
        raise DataError(
            f"{path} is {len(content)} bytes long but its header says {size}: get it again.",
            f"{path} 长 {len(content)} 字节，文件头却说有 {size} 字节：请重新获取。",
        )
    return torch.from_numpy(np.frombuffer(bytearray(content[header:]), np.uint8).reshape(shape))


def require_file(path: Path) -> None:
    """Raise a DataError unless `path` is a file with something in it."""
    if path.is_dir():
        raise DataError(
            f"{path} is a folder where a file is wanted: name the file in it.",
            f"{path} 是文件夹，这里需要的是文件：请写出其中的文件名。",
        )
    if not path.exists():
        raise DataError(
            f"{path} does not exist: check the name, or write mnist_train.pth with `python -m ddp_src.data`.",
            f"{path} 不存在：请检查名字，或用 `python -m ddp_src.data` 生成 mnist_train.pth。",
        )
    if path.stat().st_size == 0:
        raise DataError(
            f"{path} is empty: get or write it again.",
            f"{path} 是空文件：请重新获取或重新生成。",
        )


def _explain_unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, PermissionError):
        return DataError(
            f"{path} may not be read by you: change its permissions.",
            f"你没有读取 {path} 的权限：请修改它的权限。",
        )
    with path.open("rb") as file:
        is_pickle = file.read(1) == b"\x80"
    if isinstance(error, pickle.UnpicklingError) and (is_pickle or zipfile.is_zipfile(path)):
        return DataError(
            f"{path} holds Python objects, which could run code when loaded: save only tensors, "
            "with torch.save((images, labels), path).",
            f"{path} 里存有 Python 对象，载入时可能执行其中的代码：请只存张量，"
            "用 torch.save((images, labels), path) 保存。",
        )
    return DataError(
        f"{path} is not a torch file, or it was cut short: "
        "give one that torch.save wrote, or the folder of the original MNIST files.",
        f"{path} 不是 torch 文件，或者不完整：请给出 torch.save 写的文件，或存放 MNIST 原始文件的文件夹。",
    )
