"""Where digits come from and go to: the embedded file, a `.pth` file, a folder; and which are for testing."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from ddp_src.digit_files import IDX_IMAGES, IDX_LABELS, Digits, check_digits, read_idx, read_pth
from ddp_src.errors import DataError
from ddp_src.files import whole_file

EMBEDDED = Path(__file__).parent / "assets" / "mnist_5k.npz"
TRAIN_FILE, TEST_FILE = "mnist_train.pth", "mnist_test.pth"
_TEST_EVERY = 5


def read_digits(source: str | Path, *, train: bool) -> Digits:
    """The training or the test digits of "embedded", a `.pth` file or a folder. Raises DataError."""
    if source == "embedded":
        with np.load(EMBEDDED) as arrays:
            images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
        return _split(check_digits(images, labels, EMBEDDED), EMBEDDED, train=train)
    path = Path(source).expanduser()
    return _read_folder(path, train=train) if path.is_dir() else _read_train_or_test(path, train=train)


def _split(digits: Digits, source: Path, *, train: bool) -> Digits:
    """Where no test set is given, every fifth sample, from the first on, is for testing."""
    is_test = torch.arange(len(digits.labels)) % _TEST_EVERY == 0
    chosen = ~is_test if train else is_test
    if not chosen.any():
        raise DataError(
            f"{source} holds a single sample and that is kept for testing: give at least 2.",
            f"{source} 里只有一个样本，要留作测试：请至少给出 2 个。",
        )
    return Digits(digits.images[chosen], digits.labels[chosen])


def _read_train_or_test(path: Path, *, train: bool) -> Digits:
    test_path = path.with_name(path.name.replace("train", "test"))
    if test_path == path or not test_path.exists():
        return _split(read_pth(path), path, train=train)
    return read_pth(path if train else test_path)


def _read_folder(folder: Path, *, train: bool) -> Digits:
    if (folder / TRAIN_FILE).exists():
        return _read_train_or_test(folder / TRAIN_FILE, train=train)
    for place in (folder, folder / "MNIST" / "raw"):
        if any(place.glob("*-idx?-ubyte*")):
            return _read_idx_pair(place, train=train)
    wanted = f"{TRAIN_FILE}, train-images-idx3-ubyte(.gz), MNIST/raw/train-images-idx3-ubyte(.gz)"
    raise DataError(
        f"{folder} has no digits in it: looked for {wanted}.",
        f"{folder} 里没有数字数据：找过 {wanted}。",
    )


def _read_idx_pair(folder: Path, *, train: bool) -> Digits:
    prefix = "train" if train else "t10k"
    images = read_idx(_plain_or_gz(folder / f"{prefix}-images-idx3-ubyte"), IDX_IMAGES)
    labels = read_idx(_plain_or_gz(folder / f"{prefix}-labels-idx1-ubyte"), IDX_LABELS)
    return check_digits(images, labels, folder)


def _plain_or_gz(plain: Path) -> Path:
    packed = plain.with_name(f"{plain.name}.gz")
    return packed if packed.exists() and not plain.exists() else plain


def write_folder(folder: Path, *, train: Digits, test: Digits) -> None:
    """Write mnist_train.pth and mnist_test.pth, each a tuple (data, targets), whole. Raises DataError."""
    train_path, test_path = folder / TRAIN_FILE, folder / TEST_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(train_path) as train_file, whole_file(test_path) as test_file:
            for digits, file in ((train, train_file), (test, test_file)):
                content = io.BytesIO()  # writing to a file, torch.save would hide what the system said
                torch.save(tuple(digits), content)
                file.write(content.getbuffer())
    except OSError as error:
        raise DataError(
            f"cannot write to {folder} ({error.strerror}): choose another folder with --out.",
            f"无法写入 {folder}（{error.strerror}）：请用 --out 指定别的文件夹。",
        ) from error


def refuse_to_overwrite(source: str, folder: Path) -> None:
    """Raise a DataError if `write_folder(folder)` would replace a file that `source` is read from."""
    given = Path(source).expanduser()
    for read in (given, given / TRAIN_FILE, given / TEST_FILE):
        for written in (folder / TRAIN_FILE, folder / TEST_FILE):
            if read.is_file() and written.is_file() and read.samefile(written):
                raise DataError(
                    f"{written} is what --data {source} reads and would be overwritten: "
                    "choose another folder with --out.",
                    f"{written} 正是 --data {source} 要读的文件，会被覆盖：请用 --out 指定别的文件夹。",
                )
