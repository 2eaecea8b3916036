# %% [markdown] id="title" lang="en"
# # 02 · Processes: who is rank 1, and where did my print go?
#
# Rank 1 is a process that somebody started and gave a number. How it was started decides what it knows, what
# it shares with your notebook, and where its output ends up. After this chapter you can:
#
# - say of any process its rank, its local rank and the world size, and who told it;
# - choose a way to start processes, knowing what it costs and what it copies;
# - read the three commonest errors of a start, and find the rank that is really at fault.

# %% [markdown] id="title" lang="zh" sync="ba959e6e:54d41e0e"
# # 02 · 进程：rank 1 是谁？我打印的东西去哪儿了？
#
# rank 1 就是一个进程：有人把它启动起来，给了它一个编号。启动的方式决定了它知道什么、
# 和 notebook 共用什么、打印的东西又出现在哪里。读完这一章，我们就能：
#
# - 说出任何一个进程的 rank、local rank 和 world size，以及这些编号是谁给它的；
# - 在几种启动方式里做出选择，清楚各自的代价，以及各自复制了什么；
# - 看懂启动时最常见的三种报错，找到真正出问题的那个 rank。

# %% [markdown] id="words" lang="en"
# Rank and world size you know from chapter 00. A **node** is one machine, and the **local rank** is a
# process's number on its own node: with 4 ranks on each of two nodes, rank 5 is local rank 1 of the second
# node. On a single machine rank and local rank are equal. The process that starts others is their **parent**;
# here that is the kernel of this notebook, the process that runs its cells.

# %% [markdown] id="words" lang="zh" sync="ea0af15a:57ec2dce"
# rank（进程在组内的编号）和 world size（进程总数）在第 00 章已经见过。一台机器叫一个**节点**（node）；**local rank**（进程在本机内的编号）
# 只在自己的节点上数：两个节点、每个节点 4 个 rank 时，rank 5 是第二个节点上的 local rank 1。
# 只有一台机器时，rank 和 local rank 相等。启动别的进程的那个进程，叫它们的**父进程**（parent）；
# 在这里，父进程就是这个 notebook 的**内核**（kernel），也就是运行单元格的那个进程。

# %% id="setup"
import _thread
import threading

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ddp_src import (
    LaunchRefused,
    RankFailed,
    check,
    hint,
    plots,
    show_source,
    shows,
    solution,
    spawn,
    start_methods,
    warm_up,
)
from ddp_src.lessons import processes
from ddp_src.terminal import terminal

warm_up()  # gets a process with torch ready while you read on

# %% [markdown] id="predict" lang="en"
# ## Predict first
#
# PyTorch comes with a function that starts ranks, `torch.multiprocessing.spawn`. With it you pass a Python
# list `[]` and a tensor `zeros(1)` to two ranks. Each appends its rank to the list and adds 1 to the tensor.
# What does the parent hold afterwards?
#
# - (a) `[]` and 0
# - (b) `[0, 1]` and 2
# - (c) `[]` and 2
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="c38447a9:85e8f1f2"
# ## 先猜一猜
#
# PyTorch 自带一个启动各个 rank 的函数：`torch.multiprocessing.spawn`。用它把 Python 列表 `[]` 和张量 `zeros(1)`
# 传给两个 rank，每个 rank 都往列表里追加自己的编号、给张量加 1。结束之后，父进程手里的是什么？
#
# - (a) `[]` 和 0
# - (b) `[0, 1]` 和 2
# - (c) `[]` 和 2
#
# 先写下你的答案，再往下看。

# %% [markdown] id="run" lang="en"
# ## Run it
#
# This is what each of the two ranks runs:

# %% [markdown] id="run" lang="zh" sync="69a6a193:213e6ad2"
# ## 跑起来
#
# 下面是两个 rank 各自要运行的函数：

# %% id="source"
show_source(processes.touch)

# %% [markdown] id="launch" lang="en"
# `terminal()` catches what the two processes print by themselves and shows it with a mark in front.

# %% [markdown] id="launch" lang="zh" sync="95fc63a3:ddae0508"
# `terminal()` 会截下这两个进程自己打印出来的东西，在每行前面加上记号再显示。

# %% id="plain"
seen, total = [], torch.zeros(1)
with terminal():
    mp.spawn(processes.touch, args=(seen, total), nprocs=2)
print(f"{seen = }, {total = }")

# %% [markdown] id="print" lang="en"
# The last line answers the question; the reason follows below. First the other one: **where did the print
# go?** Each rank inherits the standard output of its parent, the kernel. The kernel's own `print` goes another
# way, and only that way leads to the cell.
#
# So it depends on the kernel's version: such lines come up under the cell that runs, or they end in the
# terminal where Jupyter was started. They say nothing of their rank and come in any order.
#
# `spawn` of this project sends them where you look, with the rank that printed them:

# %% [markdown] id="print" lang="zh" sync="e12f90e3:c930630d"
# 最后一行就是答案，原因留到下面再说。先看另一个问题：**我打印的东西去哪儿了？** 每个 rank 继承的是父进程
# （也就是内核）的标准输出；而内核自己的 `print` 走的是另一条路，只有那条路才通到单元格。
#
# 所以要看内核的版本：有的会把这些行显示在正在运行的单元格下面，有的则留在启动 Jupyter 的那个终端里。
# 它们既不写是谁打印的，先后次序也没有保证。
#
# 本项目的 `spawn` 会把它们送到我们眼前，并写明是哪个 rank 打印的：

# %% id="introduce"
show_source(processes.introduce)
_ = spawn(processes.introduce, nprocs=2)

# %% [markdown] id="told" lang="en"
# Nothing in the function counts processes. Whoever starts them, the launcher, puts `RANK`, `LOCAL_RANK` and
# `WORLD_SIZE` into the environment of each. `torchrun` does exactly the same. Read them without a default: a
# program that says `os.environ.get("RANK", 0)` goes on when nobody has launched it, alone and without a word.

# %% [markdown] id="told" lang="zh" sync="2f64f563:4b21b6c9"
# 这个函数自己并没有去数进程。编号是启动器给的：谁启动这些进程，谁就把 `RANK`、`LOCAL_RANK` 和 `WORLD_SIZE`
# 写进每个进程的环境变量。`torchrun` 也是这么做的。读的时候不要给默认值：写成 `os.environ.get("RANK", 0)`，
# 没有启动器时程序也会一声不吭地独自跑下去。

# %% [markdown] id="see" lang="en"
# ## See it
#
# Python knows three ways to start a process:
#
# - **fork** copies the parent as it stands. That is quick, since both use the same memory until one of them
#   writes to it.
# - **spawn** starts a fresh Python. It gets the name of a function and its arguments **pickled**, that is,
#   turned into bytes, and has to import everything anew.
# - **forkserver** starts one fresh Python, the server, and forks that for every process.
#
# The fourth column below is this project's `spawn`: on Linux a forkserver that has torch loaded already,
# elsewhere the slow way. Most entries come from two ranks that ran the function below; a function of a cell
# and an open file are handed over, to see what happens.

# %% [markdown] id="see" lang="zh" sync="fc00db71:360fea74"
# ## 看结果
#
# Python 启动进程有三种方式：
#
# - **fork**：把父进程原样复制一份。这很快，因为两边先共用同一块内存，谁要改写，才为谁另存一份。
# - **spawn**：启动一个全新的 Python。传给它的是函数的名字，以及序列化（pickle，即转成字节）之后的参数；
#   所有的模块它都得重新导入。
# - **forkserver**：先启动一个全新的 Python 当服务进程，以后每要一个进程，就从它 fork 一个。
#
# 图中第四列是本项目的 `spawn`：在 Linux 上，它用的是一个已经载入 torch 的 forkserver；在别的系统上，就是慢的那种。
# 大多数格子都是两个 rank 运行下面这个函数的结果；单元格里的函数和打开的文件，则是直接传过去，看会怎样。

# %% id="probe"
show_source(start_methods.look)

# %% id="ways"
ways = spawn(start_methods.try_each, nprocs=1, backend="gloo", show=False)[
    0
]  # in a process with torch loaded
ways.append(start_methods.try_way(start_methods.OURS))
plots.inheritance(ways)

# %% [markdown] id="ways-alt" alt="ways" lang="en"
# A table with the columns fork, forkserver, spawn and ddp_src.spawn. Ranks started by fork and by ddp_src.spawn
# run at once and need little memory of their own; forkserver and spawn take more than ten times as long and
# hundreds of MB. A list argument is copied by all four. A tensor argument is shared by
# forkserver and spawn and copied by the other two. A variable of the parent is copied by fork and absent in
# the others. A function of a cell is refused by forkserver and spawn. The random state is copied by fork
# alone. An open file is shared by fork and refused by the others. A thread is absent in all. CUDA is refused
# after a fork; the other three report that there is no GPU.

# %% [markdown] id="ways-alt" alt="ways" lang="zh" sync="843c9d25:e1e9b216"
# 一张表，四列是 fork、forkserver、spawn 和 ddp_src.spawn。用 fork 和 ddp_src.spawn，rank 很快就启动好，
# 每个 rank 独占的内存很少；forkserver 和 spawn 要慢十倍以上，内存多出几百 MB。列表参数：四种方式都是复制。
# 张量参数：forkserver 和 spawn 是共享，另外两种是复制。父进程的变量：fork 复制，其余没有。单元格里的函数：
# forkserver 和 spawn 拒绝。随机状态：只有 fork 复制。打开的文件：fork 共享，其余拒绝。线程：都没有。CUDA 上下文：
# fork 之后被拒绝，其余三种报告没有 GPU。

# %% id="claim"
print(f"{total.is_shared() = }, {torch.zeros(1).is_shared() = }")
for way in ways:
    print(f"{way.name}: weight 0, one step of −1 on each of 2 ranks → {way.weight:g} in the parent")
seconds = {way.name: way.seconds for way in ways}
print(f"start: spawn / ddp_src.spawn = {seconds['spawn'] / seconds[start_methods.OURS]:.0f}")

# %% [markdown] id="read" lang="en"
# **The answer is (c).** The list was pickled: each rank built a list of its own from the bytes. For a tensor,
# torch pickles only the address of its numbers, after moving them into **shared memory**, which several
# processes can use at once; `is_shared()` says so. Both ranks added to the same number.

# %% [markdown] id="read" lang="zh" sync="8c738f44:fc690789"
# **答案是 (c)**。列表被序列化成字节，每个 rank 用这些字节各造了一个列表。张量则不同：torch 先把它的数挪进
# **共享内存**（几个进程可以同时使用的内存），序列化的只是地址；`is_shared()` 说的就是这件事。
# 所以两个 rank 是在同一个数上加的。

# %% id="travel"
plots.arguments()

# %% [markdown] id="travel-alt" alt="travel" lang="en"
# Two paths from the parent to the ranks. Above, the parent's empty list becomes bytes, and from these rank 0
# and rank 1 build two separate lists, [0] and [1]. Below, the tensors of the parent, of rank 0 and of rank 1
# all point to one block of shared memory, which holds 2.

# %% [markdown] id="travel-alt" alt="travel" lang="zh" sync="043ca832:004367b2"
# 从父进程到两个 rank 的两条路。上面：父进程的空列表变成字节，rank 0 和 rank 1 用它各造出一个列表，分别是 [0] 和 [1]。
# 下面：父进程、rank 0、rank 1 的三个张量都指向同一块共享内存，里面的数是 2。

# %% [markdown] id="model" lang="en"
# The weight in the lines above went the same way: a model is made of tensors. Pass one to plain `spawn`, let
# each of two ranks take a step of −1, and the weight moves by −2. Two ranks train one set of weights, and it
# looks like twice the learning rate. **Build the model inside the function.** This project's `spawn` copies
# all arguments.

# %% [markdown] id="model" lang="zh" sync="dce3fd1c:7dd465bc"
# 前面那几行里的权重也是这么走的，因为模型就是由张量组成的。把模型当参数传给原生的 `spawn`，两个 rank 各走一步 −1，
# 权重就变了 −2：两个 rank 在训练同一份权重，看上去好像学习率翻了倍。
# **模型要在函数里面创建。** 本项目的 `spawn` 则会把参数给每个 rank 各复制一份。

# %% [markdown] id="why" lang="en"
# ## Why
#
# - If you chose (a): you thought that all arguments are copied, as the list is.
# - If you chose (b): you thought of **threads**, which run inside one process and share all that it has.
#
# Now read the table. "Copied": every rank has its own. "Shared": all have the same one. "Absent": nothing
# came across, the rank has what a fresh process has. "Refused": it is an error.
#
# **Time and memory** go by one thing: does each rank load torch for itself? Under spawn it does, and under a
# bare forkserver too, for the server is a fresh Python. A server that loads torch once, before it is forked,
# makes up the whole difference. (A rank's own memory is what it shares with no other process.)
#
# **fork** is as quick, but takes too much along. Two forked ranks draw the same random numbers, and read from
# one open file. And a process that wants to use a GPU sets up a **CUDA context** for it, which cannot be
# forked: CUDA is refused, even where there is no GPU at all. It is enough that the parent has asked
# `torch.cuda.is_available()`. (A torch built without CUDA says "no GPU" instead.)
#
# Threads are absent in every column, and only under fork is that dangerous: a lock that a thread held at that
# moment stays locked for ever in the copy.
# [Python's documentation](https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods)
# warns of it, and a notebook's kernel always has threads.

# %% [markdown] id="why" lang="zh" sync="3959e56a:2a6f3093"
# ## 为什么
#
# - 选 (a)，多半是以为所有参数都像列表那样复制。
# - 选 (b)，多半是想到了线程（thread）：它们在同一个进程里运行，什么都共用。
#
# 再来读这张表。copied（复制）：每个 rank 各有一份；shared（共享）：大家用的是同一个；absent（没有）：
# 什么也没带过来，rank 手里的和新进程一样；refused（拒绝）：直接报错。
#
# **时间和内存**取决于一件事：是不是每个 rank 都要自己载入 torch。spawn 要；普通的 forkserver 也要，因为服务进程
# 是个全新的 Python。服务进程先把 torch 载入一次，然后再 fork，差别就全在这里。
# （图中的 own memory 是不与别的进程共用的那部分内存。）
#
# **fork** 同样快，可是带过来的太多。两个 fork 出来的 rank 会抽到相同的随机数，还会读同一个打开的文件。
#
# 进程要用 GPU，得先建立一个 **CUDA 上下文**（CUDA context），而它不能 fork。所以 CUDA 直接拒绝，
# 哪怕机器上根本没有 GPU；父进程只要问过一次 `torch.cuda.is_available()` 就够了。
# （没有编入 CUDA 的 torch 会显示 no GPU。）
#
# 线程在四列里都没有，但只有 fork 会因此出事：复制的那一刻，如果某个线程正拿着锁，副本里的这把锁就永远打不开了。
# [Python 文档](https://docs.python.org/zh-cn/3/library/multiprocessing.html#contexts-and-start-methods)
# 对此有警告，而 notebook 的内核总是有好几个线程。

# %% [markdown] id="dozen" lang="en"
# ## The dozen lines that `spawn` writes for you
#
# Stripped of all comfort, a launcher is this:

# %% [markdown] id="dozen" lang="zh" sync="eef3b94c:02792f96"
# ## `spawn` 替我们写好的那十几行
#
# 去掉所有方便的功能，一个启动器就剩下这些：

# %% id="dozen-source"
show_source(processes.launch, processes.run_rank)

# %% [markdown] id="rendezvous" lang="en"
# The ranks are started one by one, and none knows where the others are. How they find one another is called
# the **rendezvous**; after it they form a **process group**, all of whose members can talk to each other. Here
# they meet through a file, in which each writes its address. The next function forms a group in three ways
# and adds up a 1 from every rank in each. The launcher above starts it:

# %% [markdown] id="rendezvous" lang="zh" sync="51f8abb9:4f6ee108"
# 各个 rank 是分别启动的，谁也不知道别人在哪里。它们彼此找到的过程，叫 **rendezvous**（会合）；会合之后，
# 它们组成一个**进程组**（process group），组里的成员可以互相通信。上面用的是一个文件，每个 rank 把自己的地址写进去。
#
# 下面的函数用三种方式各建一次进程组，每次都让所有 rank 各交出一个 1，再加起来。我们就用上面这个启动器来运行它：

# %% id="meet"
show_source(processes.meet)
with terminal():
    sums = processes.launch(processes.meet, nprocs=2)
for rank, by_way in enumerate(sums):
    print(f"rank {rank}: {by_way}")

# %% [markdown] id="meet-why" lang="en"
# Three ways, one result: 2 of 2 ranks are there.
#
# | by | every rank must know | use it |
# |---|---|---|
# | file | a path that all can reach | on one machine: no port that another program may hold |
# | TCP | rank 0's address and a port | when you write the launcher yourself |
# | environment | `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` | under `torchrun`, which sets all four |
#
# The last two are one method: rank 0 listens at a port. That port must be free, and two jobs that use the
# same one clash. On Windows it may also fail with "use_libuv was requested but PyTorch was built without
# libuv support"; [setting `USE_LIBUV=0` helps](https://github.com/pytorch/pytorch/issues/139990). `spawn`
# uses a file, so neither can happen to it.

# %% [markdown] id="meet-why" lang="zh" sync="49713543:606882d0"
# 三种方式，结果一样：2 个 rank 都到齐了。
#
# | 方式 | 每个 rank 要知道 | 什么时候用 |
# |---|---|---|
# | 文件 | 一个大家都能访问的路径 | 只有一台机器时：不占端口，不会和别的程序抢 |
# | TCP | rank 0 的地址和一个端口 | 自己写启动器时 |
# | 环境变量 | `MASTER_ADDR`、`MASTER_PORT`、`RANK`、`WORLD_SIZE` | 用 `torchrun` 时，四个都由它设好 |
#
# 后两种其实是同一种：rank 0 在一个端口上等别人来。这个端口必须空着，两个任务用了同一个端口就会冲突。
# 在 Windows 上还可能报错 “use_libuv was requested but PyTorch was built without libuv support”，
# [设 `USE_LIBUV=0` 可以解决](https://github.com/pytorch/pytorch/issues/139990)。`spawn` 用的是文件，这两种麻烦都没有。

# %% [markdown] id="teardown" lang="en"
# **Why the last lines stand in this order.** A DDP model holds on to its process group. If it is still there
# when the group goes and the process ends, torch can abort at its exit, after all the work was done. Measured
# with torch 2.14.1, Gloo and 2 ranks on 2 CPU cores under Linux: 11 of 47 runs ended with SIGABRT.
#
# So the function returns and lets go of its model, `gc.collect()` clears what is left of it, and only then is
# the group destroyed. `os._exit(0)` leaves at once, without Python's and torch's own end. That way it was none
# of 70 runs.

# %% [markdown] id="teardown" lang="zh" sync="03f20a36:691d9f8a"
# **最后几行为什么按这个顺序。** DDP 模型一直抓着它的进程组。如果进程组已经撤销、进程要退出了，模型却还在，
# torch 就可能在退出时中止（abort），而这时该做的事早已做完。用 torch 2.14.1、Gloo、2 个 rank，
# 在 Linux 的 2 个 CPU 核上量过：47 次里有 11 次以 SIGABRT（中止信号）结束。
#
# 所以先让函数返回，放开模型，再用 `gc.collect()` 清掉残留，然后才撤销进程组。最后的 `os._exit(0)` 直接离开，
# 不走 Python 和 torch 自己的收尾。这样做，70 次里一次也没有。

# %% [markdown] id="gpu" lang="en"
# ## On a machine with GPUs
#
# One rank, one GPU, chosen by the *local* rank, for GPUs are numbered on each machine anew:
#
# ```python
# local_rank = int(os.environ["LOCAL_RANK"])
# torch.cuda.set_device(local_rank)  # before the group is joined
# dist.init_process_group("nccl")
# model = DDP(Net().to(local_rank), device_ids=[local_rank])
# ...
# torch.cuda.synchronize()  # a call returns before the GPU has done its work: wait, then read the clock
# seconds = time.perf_counter() - start
# ```
#
# Where every rank says only `"cuda"` and none calls `set_device`, all of them compute on GPU 0, and NCCL
# refuses: ["Duplicate GPU detected"](https://github.com/facebookresearch/fairchem/issues/597). `spawn` counts
# before it starts anything. Here it is asked for one rank more than there are GPUs:

# %% [markdown] id="gpu" lang="zh" sync="192e3b20:70679b57"
# ## 在有 GPU 的机器上
#
# 一个 rank 用一块 GPU，按 *local* rank 来选，因为每台机器上的 GPU 都从 0 重新编号：
#
# ```python
# local_rank = int(os.environ["LOCAL_RANK"])
# torch.cuda.set_device(local_rank)  # 要在加入进程组之前
# dist.init_process_group("nccl")
# model = DDP(Net().to(local_rank), device_ids=[local_rank])
# ...
# torch.cuda.synchronize()  # 调用返回时，GPU 还没有算完：先等它，再看表
# seconds = time.perf_counter() - start
# ```
#
# 如果每个 rank 都只写 `"cuda"`，又不调用 `set_device`，大家就都挤在 GPU 0 上，NCCL 会报错：
# [“Duplicate GPU detected”](https://github.com/facebookresearch/fairchem/issues/597)。
# `spawn` 在启动任何进程之前就会先数一数。我们故意向它要比 GPU 多一个的 rank：

# %% id="gpu-count"
with shows(LaunchRefused):
    spawn(processes.introduce, nprocs=torch.cuda.device_count() + 1, backend="nccl")
print({name: dist.Backend.backend_capability[name] for name in ("nccl", "gloo")})

# %% [markdown] id="gpu-why" lang="en"
# The last line lists the devices that each backend serves. `mps`, the GPU of an Apple computer, is in neither
# list: there DDP runs on the CPU, with Gloo.

# %% [markdown] id="gpu-why" lang="zh" sync="3ca9f87d:b3899f72"
# 最后一行列出了两个后端各支持哪些设备。苹果电脑的 GPU 叫 `mps`，两边都没有：在那里，DDP 只能用 Gloo 在 CPU 上跑。

# %% [markdown] id="break" lang="en"
# ## Break it
#
# **First: a function from a cell.** Nothing looks more natural in a notebook:

# %% [markdown] id="break" lang="zh" sync="1e822ed7:9999160a"
# ## 弄坏它
#
# **第一种：单元格里的函数。** 在 notebook 里，没有比这更自然的写法了：

# %% id="fault-cell"
greeting = "hello from a cell"


def hello(rank):
    print(greeting)


with shows(mp.ProcessExitedException), terminal():
    mp.spawn(hello, nprocs=1)

# %% [markdown] id="fault-cell-why" lang="en"
# The error that the cell raises says "exit code 1" and no more. The reason is in what the process printed: a
# function is pickled as a name, here `hello` in `__main__`, and the fresh Python has a `__main__` of its own
# with nothing in it. A main guard (`if __name__ == "__main__":`) does not help here. In a script, though, it
# [is needed](https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods):
# without it every fresh Python runs the script from its top.
#
# In a notebook two things help: keep the function in a module, as the lessons here do, or send it by value,
# with all that it uses. `spawn` does the second:

# %% [markdown] id="fault-cell-why" lang="zh" sync="db67a5eb:1ec009ce"
# 单元格抛出的错误只说了一句 “exit code 1”。真正的原因在那个进程自己打印的内容里：函数序列化之后只剩一个名字，
# 这里是 `__main__` 里的 `hello`；而新的 Python 有它自己的 `__main__`，里面什么也没有。
#
# 写上 `if __name__ == "__main__":` 在这里没用。不过在脚本里
# [不能没有它](https://docs.python.org/zh-cn/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods)，
# 否则每个新的 Python 都会把脚本从头再跑一遍。
#
# 在 notebook 里，管用的办法有两个：把函数放进模块，这里的 lessons 就是这样；或者把函数连同它用到的东西按值传过去，
# `spawn` 用的是后一种：

# %% id="mended-cell"
_ = spawn(hello, nprocs=2)

# %% [markdown] id="fault-file" lang="en"
# **Second: a file opened before the fork.** A process opens the file of digits, then forks two readers. In
# `fork_then_open` all is the same, but each reader opens the file for itself:

# %% [markdown] id="fault-file" lang="zh" sync="e261a9d1:81024cad"
# **第二种：fork 之前就打开了文件。** 一个进程先打开数字数据的文件，再 fork 出两个进程来读。`fork_then_open`
# 则只差一点：每个读的进程各开各的。

# %% id="fault-fork"
show_source(processes.open_then_fork, processes.read_digits)
if "fork" in mp.get_all_start_methods():  # Windows has none
    for way in (processes.open_then_fork, processes.fork_then_open):
        for reader, got in enumerate(spawn(way, nprocs=1, backend="gloo")[0]):
            print(f"{way.__name__}: reader {reader}: {got}")

# %% [markdown] id="fault-file-why" lang="en"
# The file is whole, and nobody wrote to it. But a position in an open file belongs to the file, not to the
# process: each reader moves it for the other, and both get pieces of the wrong place. Run the cell again and
# the errors are others. A `DataLoader` whose workers are forked does the same to a data set that opened its
# file in `__init__`. Open it where it is read.

# %% [markdown] id="fault-file-why" lang="zh" sync="9d67289e:2e4ff73e"
# 文件是完好的，也没有人改过它。问题在于，读到哪里了这个位置属于打开的文件，不属于进程：一个进程往前读，另一个的位置也跟着动，
# 两边读到的都是错位的碎片。再运行一次，报错又会不同。
#
# `DataLoader` 的加载进程如果是 fork 出来的，也一样：数据集要是在 `__init__` 里就打开了文件，同样会中招。
# 哪里读，就在哪里打开。

# %% [markdown] id="fault-rank" lang="en"
# **Third: a rank that is gone.** Rank 1 finds nothing to do and exits; rank 0 waits for it in an all-reduce.
# First under the dozen lines:

# %% [markdown] id="fault-rank" lang="zh" sync="0c2577ca:05b883c1"
# **第三种：有个 rank 不在了。** rank 1 发现没事可做，就退出了；rank 0 还在 all-reduce（全归约：归约后每个
# rank 都拿到结果）里等它。先用上面那十几行来启动：

# %% id="fault-peer"
show_source(processes.leave_early)
with shows(mp.ProcessRaisedException), terminal():
    processes.launch(processes.leave_early, nprocs=2)

# %% [markdown] id="fault-peer-why" lang="en"
# "Process 0 terminated": the rank that did nothing wrong. "Connection closed by peer", at other times
# "Connection reset by peer", is what a rank sees when *another* one has gone; its **peer** is the process at
# the other end of the line. Rank 1 is not mentioned, since it ended with status 0, which to plain `spawn` is
# success. So whenever you read this message, look at the other ranks. This project's `spawn` does it for you:

# %% [markdown] id="fault-peer-why" lang="zh" sync="3e4fefee:170b5672"
# “Process 0 terminated”：被点名的恰恰是没做错事的那个。“Connection closed by peer” 说的是对端关闭了连接，
# 有时也会是 “Connection reset by peer”；**对端**（peer）就是连接另一头的那个进程。
# 一个 rank 看到这句话，说明是*别的* rank 不在了。
#
# 报错里没有提到 rank 1，因为它的退出状态是 0，在原生的 `spawn` 看来就是成功。所以只要看到这句话，就去查别的 rank。
# 本项目的 `spawn` 会替我们查：

# %% id="mended-peer"
with shows(RankFailed):
    spawn(processes.leave_early, nprocs=2, backend="gloo")

# %% [markdown] id="mended-peer-why" lang="en"
# Rank 1, its line, and what became of rank 0. And if it is you who ends the launch? Both ranks below are in an
# endless loop, and after half a second the cell does what the stop button does:

# %% [markdown] id="mended-peer-why" lang="zh" sync="07ff96aa:ec450bd0"
# rank 1、出错的那一行，还有 rank 0 的下场，都说清楚了。那么，如果是我们自己要停下来呢？下面两个 rank 都在死循环里，
# 半秒之后，单元格替我们按下停止键：

# %% id="interrupt"
threading.Timer(0.5, _thread.interrupt_main).start()  # as the stop button does
try:
    spawn(processes.work_on, nprocs=2)
except KeyboardInterrupt:
    print(f"KeyboardInterrupt, processes left: {len(mp.active_children())}")

# %% [markdown] id="interrupt-why" lang="en"
# No rank stays behind to hold memory or a port. This is what `spawn` adds to the dozen lines: functions by
# value, arguments copied, prints with their rank, a quick start, the first cause named, and nothing left over.
# What it does when ranks hang is for chapter 13.

# %% [markdown] id="interrupt-why" lang="zh" sync="4f92c388:054abd4f"
# 没有哪个 rank 留下来占着内存或端口。在那十几行之外，`spawn` 多做的就是这些：函数按值传送，参数各复制一份，
# 打印时写明 rank，启动得快，报出最先出错的是谁，而且什么也不会留下。各个 rank 卡住时它怎么办，第 13 章再说。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# A launcher starts `ranks_per_node` ranks on each node: the first node gets the first ranks, the next node the
# next ones. From a rank, give its node, counted from 0, and its local rank.
#
# `hint("processes-1")` gives a hint, `solution("processes-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="6c314764:1c12e989"
# ## 动手试试
#
# 启动器在每个节点上启动 `ranks_per_node` 个 rank：最前面的几个归第一个节点，接着的几个归第二个，依此类推。
# 已知 rank，请给出它在哪个节点上（从 0 数起），以及它的 local rank。
# 需要提示就运行 `hint("processes-1")`，想看答案就运行 `solution("processes-1")`。


# %% id="exercise"
def place(rank, world_size, ranks_per_node):
    """(node, local rank), for example (1, 1) for rank 5 of 8 with 4 ranks per node."""
    ...


check("processes-1", place)

# %% [markdown] id="next" lang="en"
# ## Next
#
# Chapter 03 asks what the ranks can say to each other once they have met: what each collective leaves on each
# rank.
#
# Sources: [start methods in Python](https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods) ·
# [sharing tensors between processes](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html) ·
# [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#initialization)

# %% [markdown] id="next" lang="zh" sync="c92b5e62:b34bd603"
# ## 接下来
#
# 各个 rank 会合之后，能互相说些什么？第 03 章来看，每一种集合通信（collective communication）会在每个 rank 上留下什么。
#
# 参考资料：[Python 的启动方式](https://docs.python.org/zh-cn/3/library/multiprocessing.html#contexts-and-start-methods) ·
# [在进程之间共享张量](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html) ·
# [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#initialization)
