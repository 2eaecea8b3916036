"""The digits as a training program meets them: a dataset that serves whole batches, and loaders for N ranks.

python -m ddp_src.data --data embedded --out .     # writes mnist_train.pth and mnist_test.pth
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from ddp_src.digit_files import Digits, read_pth
from ddp_src.download import fetch, fetch_once, load_digits
from ddp_src.errors import DataError
from ddp_src.sources import TEST_FILE, TRAIN_FILE, refuse_to_overwrite, write_folder

__all__ = [
    "Digits",
    "MNISTDataset",
    "batches",
    "fetch",
    "fetch_once",
    "load_digits",
    "test_loader",
    "train_loader",
]


class MNISTDataset(Dataset):
    """Digits from a `.pth` file that holds (data uint8 [N, 28, 28], targets [N]). Raises DataError.

    `ds[3]` is an image [1, 28, 28] with values from 0 to 1 and its label; `ds[[3, 1, 4]]` is a whole batch,
    [3, 1, 28, 28] and [3]. `transforms`, if given, gets each image as a PIL image of mode "L", as in
    torchvision's MNIST; without it the numbers are those of `ToTensor()`.
    """

    def __init__(self, root_dir: str | Path, transforms: Callable | None = None) -> None:
        self._hold(read_pth(root_dir), transforms, torch.float32)

    @classmethod
    def from_digits(
        cls, digits: Digits, transforms: Callable | None = None, *, dtype: torch.dtype = torch.float32
    ) -> MNISTDataset:
        """The same from digits in memory; `dtype` is that of the images where there are no transforms."""
        dataset = cls.__new__(cls)
        dataset._hold(digits, transforms, dtype)
        return dataset

    def _hold(self, digits: Digits, transforms: Callable | None, dtype: torch.dtype) -> None:
        self.data, self.targets = digits
        self.transforms = transforms
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int | list[int]) -> tuple[Tensor, Tensor]:
        if isinstance(index, list):
            return self._batch(index)
        image, label = self.data[index], self.targets[index]
        if self.transforms is None:
            return image.to(self.dtype).div_(255).unsqueeze(0), label
        from PIL import Image

        return self.transforms(Image.fromarray(image.numpy())), label

    def _batch(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        if self.transforms is not None:
            images, labels = zip(*(self[index] for index in indices), strict=True)
            return torch.stack(images), torch.stack(labels)
        rows = torch.tensor(indices, dtype=torch.int64)
        # index_select copies whole images; measured, indexing with [rows] takes ten times as long.
        images = self.data.index_select(0, rows)
        return images.to(self.dtype).div_(255).unsqueeze(1), self.targets.index_select(0, rows)


class _ResumableBatches(BatchSampler):
    """Lists of a rank's indices, from batch `start` of the epoch on."""

    start = 0

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(super().__iter__(), self.start, None)


def train_loader(
    dataset: Dataset, *, batch_size: int, rank: int = 0, world_size: int = 1, seed: int = 0
) -> DataLoader:
    """Shuffled batches of `batch_size` per rank; walk through them with `batches`.

    Every rank gets the same number of batches: DistributedSampler repeats samples to even them out.
    Raises DataError if there are fewer samples than ranks.
    """
    if len(dataset) < world_size:
        raise DataError(
            f"{len(dataset)} training samples are too few for {world_size} ranks: "
            "use fewer ranks or more data.",
            f"{len(dataset)} 个训练样本分不到 {world_size} 个 rank：请减少 rank 数，或换用更多的数据。",
        )
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
    return _load_whole_batches(dataset, _ResumableBatches(sampler, batch_size, drop_last=False))


def batches(loader: DataLoader, *, epoch: int, start: int = 0) -> Iterator[list[Tensor]]:
    """The batches of one epoch of a `train_loader`, each [images, labels]; the first `start` are not read.

    The order depends on the seed and on `epoch`, so that resuming at `start` meets the batches that are left.
    """
    loader.sampler.sampler.set_epoch(epoch)
    loader.sampler.start = start
    return iter(loader)


def test_loader(dataset: Dataset, *, batch_size: int, rank: int = 0, world_size: int = 1) -> DataLoader:
    """Every sample once over all ranks, none repeated; a rank may get fewer than another, or none."""
    mine = range(rank, len(dataset), world_size)
    return _load_whole_batches(dataset, BatchSampler(mine, batch_size, drop_last=False))


def _load_whole_batches(dataset: Dataset, sampler: BatchSampler) -> DataLoader:
    # A generator of its own: by default each epoch of a DataLoader takes a number from the global one,
    # and then what the model draws would depend on how often the data were read.
    return DataLoader(dataset, sampler=sampler, batch_size=None, generator=torch.Generator())


def main(arguments: list[str] | None = None) -> int:
    """Write the two files; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_src.data",
        description="Write mnist_train.pth and mnist_test.pth, each a tuple (data uint8 [N, 28, 28], targets "
        "int64 [N]). | 生成 mnist_train.pth 和 mnist_test.pth，各存一个元组（data，targets）。",
    )
    parser.add_argument(
        "--data",
        default="embedded",
        metavar="SOURCE",
        help="embedded (5,000 real digits that come with the project, the default), mnist (downloads all "
        "70,000), a .pth file, or a folder of original MNIST files | 数据来源：embedded（项目自带的 5,000 个"
        "数字，默认）、mnist（下载全部 70,000 个）、一个 .pth 文件，或存放 MNIST 原始文件的文件夹",
    )
    parser.add_argument(
        "--out",
        default=".",
        type=Path,
        metavar="FOLDER",
        help="where the two files go, by default here | 两个文件写到哪个文件夹，默认为当前文件夹",
    )
    options = parser.parse_args(arguments)
    try:
        refuse_to_overwrite(options.data, options.out)
        train, test = (load_digits(options.data, train=train) for train in (True, False))
        write_folder(options.out, train=train, test=test)
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    for name, digits in ((TRAIN_FILE, train), (TEST_FILE, test)):
        print(f"{options.out / name}: {len(digits.labels)} digits | {len(digits.labels)} 个数字")
    return 0


if __name__ == "__main__":
    sys.exit(main())
