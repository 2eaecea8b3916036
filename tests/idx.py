"""Small MNIST files in the original format, made up for tests."""

import gzip

import torch


def make_digits(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 10


def idx_files(train: int, test: int) -> dict[str, bytes]:
    """The four gzipped files, by name, holding `make_digits(train, 1)` and `make_digits(test, 2)`."""
    files = {}
    for prefix, (images, labels) in (("train", make_digits(train, 1)), ("t10k", make_digits(test, 2))):
        pixels = bytes(images.flatten().tolist())
        files[f"{prefix}-images-idx3-ubyte.gz"] = _pack(b"\0\0\x08\x03", (len(images), 28, 28), pixels)
        files[f"{prefix}-labels-idx1-ubyte.gz"] = _pack(
            b"\0\0\x08\x01", (len(labels),), bytes(labels.tolist())
        )
    return files


def _pack(magic: bytes, shape: tuple[int, ...], values: bytes) -> bytes:
    return gzip.compress(magic + b"".join(size.to_bytes(4, "big") for size in shape) + values, mtime=0)
