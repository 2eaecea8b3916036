"""The two models of the series: one so small that communication dominates, one with enough to overlap."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ddp_src.errors import ConfigError


class SimpleModel(nn.Module):
    """784 → 100 → 10, for images of any shape with 784 pixels: 79,510 parameters in 4 tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 28, 28) or (N, 1, 28, 28) → class scores (N, 10)."""
        hidden = F.relu(self.fc1(images.flatten(1)))
        return self.fc2(hidden)


class SmallCNN(nn.Module):
    """Five convolutions and two linear layers: 1,223,370 parameters (4.9 MB in float32) in 14 tensors.

    The big tensors are spread over the depth, so that DDP with `bucket_cap_mb=1` has four buckets to send
    while the backward pass is still running. No dropout and no batch norm: N ranks compute what one would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 128, 3, padding=1)
        self.conv4 = nn.Conv2d(128, 256, 3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        self.fc1 = nn.Linear(256 * 3 * 3, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 28, 28) or (N, 1, 28, 28) → class scores (N, 10)."""
        x = images.reshape(-1, 1, 28, 28)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # 14 × 14
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # 7 × 7
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)  # 3 × 3
        x = F.relu(self.conv4(x))
        x = F.relu(self.conv5(x))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


_MODELS = {"simple": SimpleModel, "cnn": SmallCNN}


def build_model(name: str) -> nn.Module:
    """The model called "simple" or "cnn", freshly initialised; any other name raises ConfigError."""
    if name not in _MODELS:
        raise ConfigError(
            f"There is no model {name!r}: choose simple or cnn.",
            f"没有名为 {name!r} 的模型：请选 simple 或 cnn。",
        )
    return _MODELS[name]()
