"""PyTorch DistributedDataParallel, learned by running it: the multi-process code behind the notebooks."""

import importlib

_WHERE = {
    "spawn": "launch",
    "warm_up": "launch",
    "LaunchError": "launch",
    "LaunchRefused": "launch",
    "RankFailed": "launch",
    "RanksStuck": "launch",
    "TimeLimitReached": "launch",
    "show_source": "notebook",
    "shows": "notebook",
    "check": "exercises",
    "hint": "exercises",
    "solution": "exercises",
}
__all__ = list(_WHERE)


def __getattr__(name: str):
    """Import on first use: torch takes seconds, and a rank needs only a part of the package."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
