# %% [markdown] id="title" lang="en"
# # 02 · Processes: who is rank 1, and where did my print go?
#
# Rank 1 is a process that somebody started and gave a number. How it was started decides what it knows, what
# it shares with your notebook, and where its output ends up. After this chapter you can:
#
# - say of any process its rank, its local rank and the world size, and who told it;
# - choose a way to start processes by what it costs and what it copies;
# - read three common errors of a start, and find the rank that is really at fault.

# %% [markdown] id="title" lang="zh" sync="9d93173d:0d397583"
# # 02 · 进程：rank 1 是谁？我打印的东西去哪儿了？
#
# rank 1 就是一个进程，有人启动了它，给了它编号 1。怎样启动，决定了它知道什么、
# 和 notebook 共用什么、打印的东西又出现在哪里。读完这一章，我们就能：
#
# - 说出任何一个进程的 rank、local rank 和 world size，以及这些是谁告诉它的；
# - 看代价，看复制了什么，选出合适的启动方式；
# - 看懂启动时常见的三种错误，找到真正出问题的那个 rank。

# %% [markdown] id="words" lang="en"
# Rank and world size you know from chapter 00. A **node** is one machine. The **local rank** is a process's
# number on its own node: with 4 ranks on each of two nodes, rank 5 is local rank 1 of the second node. On a
# single machine rank and local rank are equal. The process that starts others is their **parent**; here it is
# this notebook's **kernel**, the process that runs its cells.

# %% [markdown] id="words" lang="zh" sync="fccde1b4:f3b73db8"
# rank（进程在组内的编号）和 world size（进程总数）在第 00 章已经见过。一台机器叫一个**节点**（node）；**local rank**（进程在本机内的编号）
# 只在自己的节点上数：两个节点各有 4 个 rank 时，rank 5 是第二个节点上的 local rank 1。
# 只有一台机器时，两者相等。启动别的进程的，叫它们的**父进程**（parent）；
# 在这里就是这个 notebook 的**内核**（kernel），它负责运行单元格。

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
# PyTorch has a function that starts ranks, `torch.multiprocessing.spawn`, below written `mp.spawn`. With it
# you pass a Python list `[]` and a tensor `zeros(1)` to two ranks. Each appends its rank to the list and adds 1
# to the tensor. What does the parent hold afterwards?
#
# - (a) `[]` and 0
# - (b) `[0, 1]` and 2
# - (c) `[]` and 2
#
# Write your letter down before you read on.

# %% [markdown] id="predict" lang="zh" sync="d9297435:93e7956e"
# ## 先猜一猜
#
# PyTorch 自带一个启动各个 rank 的函数：`torch.multiprocessing.spawn`，下面写作 `mp.spawn`。我们用它把 Python 列表 `[]`
# 和张量 `zeros(1)` 传给两个 rank；每个 rank 往列表里追加自己的编号，再给张量加 1。结束之后，父进程手里的列表和张量是什么？
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

# %% [markdown] id="run" lang="zh" sync="69a6a193:8d0d9004"
# ## 跑起来
#
# 两个 rank 运行的都是这个函数：

# %% id="source"
show_source(processes.touch)

# %% [markdown] id="launch" lang="en"
# `terminal()` catches what the two ranks print and shows it with a mark in front.

# %% [markdown] id="launch" lang="zh" sync="d4c6d7f3:031df16d"
# `terminal()` 截下这两个进程自己打印的内容，在每行前面加上 `terminal |` 再显示。

# %% id="plain"
seen, total = [], torch.zeros(1)
with terminal():
    mp.spawn(processes.touch, args=(seen, total), nprocs=2)
print(f"{seen = }, {total = }")

# %% [markdown] id="print" lang="en"
# The last line answers the question; the reason follows below. First the other one: **where did the print
# go?** The kernel's own `print` has its own way to the cell. A rank writes to the standard output that it
# inherits from its parent, the kernel. Where that comes up depends on the kernel's version: under the cell that
# runs, or in the terminal where Jupyter was started. The lines do not name their rank, and come in any order.
#
# This project's `spawn` brings them to the cell, with the rank that printed them:

# %% [markdown] id="print" lang="zh" sync="252a7d6b:d38b2b37"
# 最后一行就是答案，原因下面再讲。先看另一个问题：**我打印的东西去哪儿了？** 内核自己的 `print` 直通单元格。
# rank 的 `print` 走另一条路：从父进程，也就是内核，继承来的标准输出。
#
# 这条路通到哪里，要看内核的版本：可能是正在运行的单元格下面，也可能是启动 Jupyter 的那个终端。
# 而且这些行不写是谁打印的，先后次序也不一定。
#
# 本项目的 `spawn` 会把它们送到眼前，并写明是哪个 rank 打印的：

# %% id="introduce"
show_source(processes.introduce)
_ = spawn(processes.introduce, nprocs=2)

# %% [markdown] id="told" lang="en"
# The function counts nothing: it prints what the launcher has put into the environment variables of each
# process. `torchrun` does so too. Read them without a default: with
# `os.environ.get("RANK", 0)`, a program that nobody has launched goes on alone, without a word.

# %% [markdown] id="told" lang="zh" sync="0e01227f:4fda1a75"
# 函数里没有哪一行在数进程：它打印的，是启动器写进每个进程环境变量里的值，`torchrun` 也这样做。
# 读的时候不要给默认值：要是写成 `os.environ.get("RANK", 0)`，没有启动器，程序也会一声不吭地独自跑下去。

# %% [markdown] id="see" lang="en"
# ## See it
#
# Python knows three ways to start a process:
#
# - **fork** copies the parent as it stands. That is quick: both use the same memory until one of them writes.
# - **spawn** starts a fresh Python, which imports everything anew. It gets the name of a function, and the
#   arguments **pickled**, that is, turned into bytes. `mp.spawn` starts its ranks this way.
# - **forkserver** starts one fresh Python, the server, and forks that for every process. Arguments are pickled
#   here too.
#
# The last column below is this project's `spawn`: on Linux a forkserver that has torch loaded already,
# elsewhere the spawn above. Most rows come from two ranks that run `look`, below, after their parent got
# something to inherit; a function of a cell and an open file are handed over, to see what happens.
#
# "Copied": every rank has its own. "Shared": all have the same one. "Absent": nothing came across, the rank
# has what a fresh process has. "Refused": it is an error. A rank's own memory is what it shares with no other
# process.

# %% [markdown] id="see" lang="zh" sync="8b9e7bc4:656a5080"
# ## 看结果
#
# Python 启动进程有三种方式：
#
# - **fork**：把父进程原样复制一份。这样很快：两边先共用内存，有一方要改写，才另存一份。
# - **spawn**：启动一个全新的 Python，所有模块都要重新导入。传给它的是函数的名字，以及**序列化**（pickle，转成字节）之后的参数。
#   `mp.spawn` 用的就是这一种。
# - **forkserver**：先启动一个全新的 Python 当服务进程，以后的进程都从它 fork。参数同样要序列化。
#
# 下图最后一列是本项目的 `spawn`：在 Linux 上，它是一个已经载入 torch 的 forkserver；在别的系统上，就是上面的 spawn。
# 大多数行是这样得来的：父进程先备好一些东西（`something_to_inherit`），再让两个 rank 运行下面的 `look`；
# 单元格里的函数和打开的文件，是另外传过去试的。
#
# 格子里的 copied（复制）是每个 rank 各有一份，shared（共享）是大家用同一个，absent（没有）是没带过来、和新进程一样，
# refused（拒绝）是直接报错。own memory 是一个 rank 不与别的进程共用的内存。

# %% id="probe"
show_source(start_methods.something_to_inherit, start_methods.look)

# %% id="ways"
# In a rank: it has torch loaded, and nothing else of this notebook.
[ways] = spawn(start_methods.try_each, nprocs=1, backend="gloo", show=False)
ways.append(start_methods.try_way(start_methods.OURS))
plots.inheritance(ways)

# %% [markdown] id="ways-alt" alt="ways" lang="en"
# Four ways to start ranks. With fork and ddp_src.spawn they run almost at once and need little memory
# of their own; forkserver and spawn take more than ten times as long and hundreds of MB. A list argument is
# copied by all four. A tensor argument and a function of a cell are copied by fork and ddp_src.spawn;
# forkserver and spawn share the tensor and refuse the function. A variable of the parent and the random state
# are copied by fork and absent elsewhere. An open file is shared by fork and refused elsewhere. A thread is
# absent in all. CUDA is refused after a fork; the other three report that there is no GPU.

# %% [markdown] id="ways-alt" alt="ways" lang="zh" sync="2f335211:d53d11b4"
# 四种启动 rank 的方式。用 fork 和 ddp_src.spawn，rank 启动得快，独占的内存也少；
# forkserver 和 spawn 要慢十倍以上，每个 rank 多占几百 MB。列表参数：都是复制。
# 张量参数和单元格里的函数：fork 和 ddp_src.spawn 都是复制；forkserver 和 spawn 共享张量，拒绝函数。
# 父进程的变量和随机状态：fork 复制，其余没有。打开的文件：fork 共享，其余拒绝。线程：都没有。
# CUDA：fork 之后被拒绝，其余三种报告没有 GPU。

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

# %% [markdown] id="read" lang="zh" sync="8c738f44:60ab9496"
# **答案是 (c)**。列表被序列化成字节，每个 rank 用它各造出一个列表。张量则不同：torch 先把里面的数挪进
# **共享内存**（几个进程可以同时使用的内存），序列化的只是地址，`is_shared()` 查的就是这一点。
# 所以两个 rank 加的是同一个数。

# %% id="travel"
plots.arguments()

# %% [markdown] id="travel-alt" alt="travel" lang="en"
# The list is copied, the tensor is shared. Above, the parent's empty list becomes bytes, and from these rank 0
# and rank 1 build two separate lists, [0] and [1]. Below, the tensors of the parent, of rank 0 and of rank 1
# all point to one block of shared memory, which holds 2.

# %% [markdown] id="travel-alt" alt="travel" lang="zh" sync="155cc18d:10694658"
# 列表是复制，张量是共享。上面：父进程的空列表变成字节，rank 0 和 rank 1 用它各造出一个列表，分别是 [0] 和 [1]。
# 下面：父进程、rank 0、rank 1 的三个张量都指向同一块共享内存，里面的数是 2。

# %% [markdown] id="model" lang="en"
# Under forkserver and spawn, the weight in the lines above went the same way: a model is made of tensors. Each
# of two ranks took a step of −1, and the parent's weight moved by −2. Two ranks train one set of weights, and
# it looks like twice the learning rate. **Build the model inside the function.** This project's `spawn` copies
# all arguments.

# %% [markdown] id="model" lang="zh" sync="9f6959d0:12ecf349"
# 在上面 forkserver 和 spawn 那两行里，权重走的也是共享这条路，因为模型就是由张量组成的。两个 rank 各走一步 −1，
# 父进程的权重就变了 −2。两个 rank 训练的是同一份权重，看上去好像学习率翻了倍。
#
# **模型要在函数里面创建。** 本项目的 `spawn` 会把传入的东西给每个 rank 各复制一份。

# %% [markdown] id="why" lang="en"
# ## Why
#
# - If you chose (a): you thought that all arguments are copied, as the list is.
# - If you chose (b): you thought of **threads**, which run inside one process and share all that it has.
#
# **Time and memory** in the table go by one thing: does each rank load torch for itself? Under spawn it does,
# and under Python's own forkserver too, for the server is a fresh Python. The server of this project's `spawn`
# loads torch once, before it is forked.
#
# **fork** is quicker still, but takes too much along. Two forked ranks draw the same random numbers, and read
# from one open file. And CUDA is refused: to use a GPU, a process sets up a **CUDA context**, which cannot be
# forked. Even without a GPU it is enough that the parent has asked `torch.cuda.is_available()`, as
# `something_to_inherit` above does. (A torch built without CUDA says "no GPU" instead.)
#
# Threads are absent in every column, but only under fork is that dangerous: a lock that a thread held at that
# moment, to keep others out, stays locked for ever in the copy.
# [Python's documentation](https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods)
# warns of it, and a notebook's kernel always has threads.

# %% [markdown] id="why" lang="zh" sync="2c2a90bf:1464f841"
# ## 为什么
#
# - 选 (a)，多半是以为所有参数都像列表那样复制。
# - 选 (b)，多半是想到了**线程**（thread）：它们在同一个进程里运行，什么都共用。
#
# 表中的**时间和内存**取决于一件事：每个 rank 是不是都要自己载入 torch。spawn 要；Python 自带的 forkserver 也要，因为服务进程
# 是个全新的 Python。本项目的 `spawn` 让服务进程先载入一次 torch，再从它 fork。
#
# **fork** 更快，可是带过来的太多：两个 fork 出来的 rank 会抽到相同的随机数，读的还是同一个打开的文件。
#
# fork 之后，CUDA 也用不了：进程要用 GPU，得先建立一个 **CUDA 上下文**（CUDA context），而它不能 fork。
# 哪怕没有 GPU，父进程只要问过一次 `torch.cuda.is_available()`（上面的 `something_to_inherit` 就问了），结果就是 refused。
# （没有编入 CUDA 的 torch 会显示 no GPU。）
#
# 线程在四列里都没有，但只有 fork 会因此出事。线程用锁把别的线程挡在外面；复制的那一刻要是有线程拿着锁，
# 锁带过来了，线程却没有，这把锁就再也没人打开。
# [Python 文档](https://docs.python.org/zh-cn/3/library/multiprocessing.html#contexts-and-start-methods)
# 对此有警告，而 notebook 的内核总有好几个线程。

# %% [markdown] id="dozen" lang="en"
# ## The dozen lines that `spawn` writes for you
#
# Without any comfort, a launcher is this:

# %% [markdown] id="dozen" lang="zh" sync="69ce9d07:8fb00b08"
# ## `spawn` 替我们写好的那十几行
#
# 去掉一切方便的功能，启动器就只剩这些：

# %% id="dozen-source"
show_source(processes.launch, processes.run_rank)

# %% [markdown] id="rendezvous" lang="en"
# The ranks are started one by one, and none knows where the others are. How they find one another is called
# the **rendezvous**; after it they form a **process group**, whose members can talk to each other. Here they
# meet through a file, in which each writes its address. The next function, started by the launcher above,
# forms a group in three ways, and in each group adds up a 1 from every rank:

# %% [markdown] id="rendezvous" lang="zh" sync="0129c4bf:0b83398e"
# 各个 rank 是分别启动的，谁也不知道别的 rank 在哪里。彼此找到的过程叫 **rendezvous**（会合）；会合之后，
# 它们组成一个**进程组**（process group），组里的成员可以互相通信。上面的启动器靠一个文件会合，每个 rank 把自己的地址写进去。
#
# 下面的函数由上面的启动器来运行：它用三种方式各建一次进程组，每次让所有 rank 各交出一个 1，再加起来。

# %% id="meet"
show_source(processes.meet)
with terminal():
    sums = processes.launch(processes.meet, nprocs=2)
for rank, by_way in enumerate(sums):
    print(f"rank {rank}: {by_way}")

# %% [markdown] id="meet-why" lang="en"
# Three ways, one result: the sum is 2, so both ranks are there. A **port** is a numbered entrance to a machine.
#
# | by | every rank must know | use it |
# |---|---|---|
# | file | a path that all can reach | on one machine: no port that another program may hold |
# | TCP | rank 0's address and a port | when you write the launcher yourself |
# | environment | `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` | under `torchrun`, which sets all four |
#
# The last two are one method: rank 0 listens at a port. Two jobs that use the same port clash. On Windows it
# may also fail with "use_libuv was requested but PyTorch was built without libuv support";
# [setting `USE_LIBUV=0` helps](https://github.com/pytorch/pytorch/issues/139990). This project's `spawn` uses
# a file, so neither can happen to it.

# %% [markdown] id="meet-why" lang="zh" sync="3e47a3dd:9d110644"
# 三种方式，结果一样：和是 2，两个 rank 都到齐了。**端口**（port）是一台机器上编了号的入口。
#
# | 方式 | 每个 rank 要知道 | 什么时候用 |
# |---|---|---|
# | 文件 | 一个大家都能访问的路径 | 只有一台机器时：不占端口，不会和别的程序抢 |
# | TCP | rank 0 的地址和一个端口 | 自己写启动器时 |
# | 环境变量 | `MASTER_ADDR`、`MASTER_PORT`、`RANK`、`WORLD_SIZE` | 用 `torchrun` 时，四个都由它设好 |
#
# 后两种其实是同一种：rank 0 在一个端口上等别的 rank 来。两个任务用了同一个端口，就会冲突。
# 在 Windows 上还可能报错 “use_libuv was requested but PyTorch was built without libuv support”，
# [设 `USE_LIBUV=0` 可以解决](https://github.com/pytorch/pytorch/issues/139990)。本项目的 `spawn` 用的是文件，这两种麻烦都没有。

# %% [markdown] id="teardown" lang="en"
# **Why the last lines of `run_rank` stand in this order.** A DDP model holds on to its process group. If it is
# still there when the group goes and the process ends, torch can abort, after all the work was done. So the
# function returns and lets go of its model, `gc.collect()` clears what is left of it, and only then is the
# group destroyed. `os._exit(0)` skips Python's and torch's own end.
#
# The abort comes only now and then, so no output here shows it. Measured once, outside this notebook (torch
# 2.14.1, Gloo, 2 ranks on 2 CPU cores, Linux): 11 of 47 runs ended with SIGABRT; in this order, 0 of 70.

# %% [markdown] id="teardown" lang="zh" sync="311f5b00:d7fa9e9c"
# **`run_rank` 的最后几行为什么按这个顺序。** DDP 模型一直抓着它的进程组。要是进程组已经撤销、模型却还在，
# 进程退出时 torch 就可能中止（abort），哪怕该做的事早已做完。所以先让函数返回，放开模型；
# 再用 `gc.collect()` 清掉残留；然后才撤销进程组。最后的 `os._exit(0)` 跳过 Python 和 torch 自己的收尾。
#
# 中止只是偶尔发生，所以这里的输出里看不到。在 notebook 之外量过一次（torch 2.14.1、Gloo、Linux，2 个 rank、2 个 CPU 核）：
# 47 次里有 11 次以 SIGABRT（中止信号）结束；按上面的顺序来，70 次里是 0 次。

# %% [markdown] id="gpu" lang="en"
# ## On a machine with GPUs
#
# One rank, one GPU, chosen by the *local* rank, for each machine numbers its GPUs from 0:
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
# Where every rank says only `"cuda"` and none calls `set_device`, all compute on GPU 0, and NCCL refuses:
# ["Duplicate GPU detected"](https://github.com/facebookresearch/fairchem/issues/597). This project's `spawn`
# counts the GPUs before it starts anything. Here it is asked for two ranks more than there are GPUs:

# %% [markdown] id="gpu" lang="zh" sync="48f09447:2316328f"
# ## 在有 GPU 的机器上
#
# 一个 rank 用一块 GPU，按 *local* rank 来选，因为每台机器都从 0 开始给 GPU 编号：
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
# 本项目的 `spawn` 在启动任何进程之前，会先数一数 GPU。下面要的 rank 故意比 GPU 多两个：

# %% id="gpu-count"
with shows(LaunchRefused):
    spawn(processes.introduce, nprocs=torch.cuda.device_count() + 2, backend="nccl")
print({name: dist.Backend.backend_capability[name] for name in ("nccl", "gloo")})

# %% [markdown] id="gpu-why" lang="en"
# The last line lists the devices that each backend serves. `mps`, the GPU of an Apple computer, is in neither
# list: there DDP runs on the CPU, with Gloo.

# %% [markdown] id="gpu-why" lang="zh" sync="3ca9f87d:e673d3c2"
# 最后一行列出两个后端各支持哪些设备。苹果电脑的 GPU 叫 `mps`，两边都没有：在那里，DDP 只能用 Gloo 在 CPU 上跑。

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
# The error in the cell says "exit code 1" and no more. The reason is in what the process printed: a function
# is pickled as a name, here `hello` in `__main__`, and the fresh Python has an empty `__main__` of its own. A
# main guard (`if __name__ == "__main__":`) does not help here. A script
# [needs it](https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods):
# without it every fresh Python runs the whole script again.
#
# In a notebook two things help: keep the function in a module, as the lessons here do, or send the function
# itself instead of its name, with all that it uses. This project's `spawn` does the second:

# %% [markdown] id="fault-cell-why" lang="zh" sync="07532520:fbd11f86"
# 单元格的报错只说了一句 “exit code 1”，原因在那个进程打印的内容里：函数序列化之后只剩一个名字，
# 这里是 `__main__` 里的 `hello`；而新的 Python 自己的 `__main__` 是空的。
#
# 加上 `if __name__ == "__main__":` 也没用。脚本里倒是
# [少不了它](https://docs.python.org/zh-cn/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods)，
# 否则每个新的 Python 都会把脚本从头再跑一遍。
#
# 在 notebook 里有两个办法：把函数放进模块，这几章用的函数就放在 `ddp_src/lessons` 里；或者不传名字，
# 而传函数本身，连同它用到的东西。本项目的 `spawn` 用的是后一种：

# %% id="mended-cell"
_ = spawn(hello, nprocs=2)

# %% [markdown] id="fault-file" lang="en"
# **Second: a file opened before the fork.** A process opens the file of digits, then forks two readers.
# `fork_then_open` differs in one thing: each reader opens the file for itself.

# %% [markdown] id="fault-file" lang="zh" sync="26117ac5:78c1fafd"
# **第二种：fork 之前就打开了文件。** 一个进程先打开存着手写数字的文件，再 fork 出两个进程来读。`fork_then_open`
# 只有一点不同：两个进程各自打开文件。

# %% id="fault-fork"
show_source(processes.open_then_fork, processes.read_digits)
if start_methods.can_fork():  # Windows cannot, and on macOS a fork can crash
    for way in (processes.open_then_fork, processes.fork_then_open):
        for reader, got in enumerate(spawn(way, nprocs=1, backend="gloo")[0]):
            print(f"{way.__name__}: reader {reader}: {got}")

# %% [markdown] id="fault-file-why" lang="en"
# The file is whole, and nobody wrote to it. But the place where the next read begins belongs to the open file,
# not to the process: each reader moves it for the other, and both get wrong pieces. Run the cell again and the
# errors differ. Forked workers of a `DataLoader` do the same to a data set that opened its file in `__init__`.
# Let the process that reads a file open it.

# %% [markdown] id="fault-file-why" lang="zh" sync="f474a637:703ea00b"
# 文件是完好的，也没有人改过它。但“读到哪里了”是打开的文件记着的，不是进程记着的：一个进程往前读，
# 另一个的位置也跟着动，两边读到的都是错位的碎片。再运行一次，报错又会不同。
#
# `DataLoader` 的加载进程如果是 fork 出来的，而数据集在 `__init__` 里就打开了文件，也会这样。
# 哪个进程要读，就由哪个进程打开。

# %% [markdown] id="fault-rank" lang="en"
# **Third: a rank that is gone.** Rank 1 finds nothing to do and exits; rank 0 waits for it in an all-reduce.
# First under the dozen lines:

# %% [markdown] id="fault-rank" lang="zh" sync="0c2577ca:03788da5"
# **第三种：有个 rank 不在了。** rank 1 没事可做，就退出了；rank 0 还在 all-reduce（全归约：归约后每个
# rank 都拿到结果）里等它。先用上面那十几行来启动：

# %% id="fault-peer"
show_source(processes.leave_early)
with shows(mp.ProcessRaisedException), terminal():
    processes.launch(processes.leave_early, nprocs=2)

# %% [markdown] id="fault-peer-why" lang="en"
# "Process 0 terminated": that is the rank that did nothing wrong. "Connection closed by peer", or "reset by
# peer", is what a rank sees when *another* one has gone; its **peer** is the process at the other end of the
# connection. Rank 1 is not mentioned: it ended with status 0, which `mp.spawn` takes for success. So when you
# read this message, look at the other ranks. This project's `spawn` does it for you:

# %% [markdown] id="fault-peer-why" lang="zh" sync="26844e25:bc529eb6"
# “Process 0 terminated”：被点名的恰恰是没做错事的那个。“Connection closed by peer” 是说对端关闭了连接，
# **对端**（peer）就是连接另一头的进程；有时写的是 “Connection reset by peer”。一个 rank 报出这样一句，说明*别的* rank 不在了。
#
# 报错没有提到 rank 1：它的退出状态是 0，在 `mp.spawn` 看来就是成功。
# 所以一看到这句话，就去查别的 rank。本项目的 `spawn` 会替我们查：

# %% id="mended-peer"
with shows(RankFailed):
    spawn(processes.leave_early, nprocs=2, backend="gloo")

# %% [markdown] id="mended-peer-why" lang="en"
# It names rank 1, its line, and what became of rank 0. And if you end the launch yourself? Both ranks below are
# in an endless loop; after half a second the cell does what the stop button does:

# %% [markdown] id="mended-peer-why" lang="zh" sync="e626319f:1927a887"
# rank 1、出错的那一行、rank 0 的下场，都写明了。那么，要是我们自己想停下来呢？下面两个 rank 都在死循环里，
# 半秒之后，单元格替我们按下停止键：

# %% id="interrupt"
threading.Timer(0.5, _thread.interrupt_main).start()  # as the stop button does
with shows(KeyboardInterrupt):
    spawn(processes.work_on, nprocs=2)
print(f"processes left: {len(mp.active_children())}")

# %% [markdown] id="interrupt-why" lang="en"
# No rank stays behind to hold memory or a port. This is what `spawn` adds to the dozen lines: functions from
# cells, arguments copied, prints with their rank, a quick start, the first cause named, and nothing left over.
# What it does when ranks hang is for chapter 13.

# %% [markdown] id="interrupt-why" lang="zh" sync="935ff394:205562fd"
# 没有哪个 rank 留下来占着内存或端口。比起那十几行，`spawn` 多做的就是这些：单元格里的函数也能用，参数各复制一份，
# 打印时写明 rank，启动得快，指出最先出错的是谁，结束时什么也不留下。各个 rank 卡住（hang）时它怎么办，第 13 章再说。

# %% [markdown] id="your-turn" lang="en"
# ## Your turn
#
# A launcher starts `ranks_per_node` ranks on each node: the first node gets the first ranks, the next node the
# next ones. For a given rank, return its node, counted from 0, and its local rank.
#
# `hint("processes-1")` gives a hint, `solution("processes-1")` the answer.

# %% [markdown] id="your-turn" lang="zh" sync="19a91d57:565abe8c"
# ## 动手试试
#
# 启动器在每个节点上启动 `ranks_per_node` 个 rank：编号最小的几个归第一个节点，接着的几个归第二个，依此类推。
# 已知 rank，请返回它在哪个节点上（从 0 数起），以及它的 local rank。
# 需要提示就运行 `hint("processes-1")`，想看答案就运行 `solution("processes-1")`。


# %% id="exercise"
def place(rank, world_size, ranks_per_node):
    """(node, local rank), for example (1, 1) for rank 5 of 8 with 4 ranks per node."""
    ...


check("processes-1", place)

# %% [markdown] id="next" lang="en"
# ## Next
#
# [Chapter 03](03_collectives.ipynb) asks what the ranks can say to each other once they have met: what each
# **collective**, such as all-reduce, leaves on each rank.
#
# Sources: [start methods in
# Python](https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods) · [sharing
# tensors between processes](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html) ·
# [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#initialization)

# %% [markdown] id="next" lang="zh" sync="8ba39e31:c83c81ad"
# ## 接下来
#
# 各个 rank 会合之后，能互相说些什么？[第 03 章](03_collectives.ipynb)来看，像 all-reduce 这样的每一种**集合通信**（collective）会在每个 rank 上留下什么。
#
# 参考资料：[Python 的启动方式](https://docs.python.org/zh-cn/3/library/multiprocessing.html#contexts-and-start-methods) ·
# [在进程之间共享张量](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html) ·
# [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#initialization)
