"""The warm server: a process that has torch imported already and forks into ranks in milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

from ddp_src._failures import LaunchRefused
from ddp_src._folder import root_folder

# Imports only, and never ddp_src or the learner's modules, so that edits to them count at the next launch.
# DDP imports torch._dynamo when the first model is wrapped, which would cost every rank a second.
PRELOAD = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "cloudpickle")


def default_start_method() -> str:
    """ "forkserver" on Linux; "spawn" where forking after torch was loaded is unproven."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def let_waiting_threads_sleep() -> None:
    """Keep OpenMP's threads from spinning while they wait, in processes that load torch from now on.

    Where other programs compute too, a spinning thread takes the core from the very thread it waits for:
    on 2 busy cores a step on 2 threads took 241 ms spinning and 10 ms sleeping. OMP_WAIT_POLICY, if the
    user has set it, stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def warm_up() -> None:
    """Start the server in the background, so that the first launch need not wait for it.

    Returns at once. It ends with this process; where the start method is "spawn" it does nothing.
    """
    let_waiting_threads_sleep()
    if default_start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    root_folder()
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
    # The server inherits the mask: Ctrl-C in a terminal must not reach it while it is still importing.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    except OSError as error:
        raise LaunchRefused(
            f'the warm server cannot start ({error}): set a shorter TMPDIR, or use start_method="spawn".',
            f'热启动服务无法启动（{error}）：请换一个路径较短的 TMPDIR，或使用 start_method="spawn"。',
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
