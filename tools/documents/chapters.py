"""The documents, what of them one machine can measure, and what it can't."""

from __future__ import annotations

from dataclasses import dataclass

FAST = 470.0  # Mb/s: half of gigabit Ethernet, as much as two cores carry between virtual hosts
STEPS = ((0.0, 160.0), (0.4, 360.0), (1.0, FAST))  # those of the note, halved


@dataclass(frozen=True)
class Links:
    """Of virtual hosts, in Mb/s. `slow` are hosts that send more slowly; `steps` are
    the rates of the first host, so many seconds after it begins to send."""

    hosts: int
    rate_mbit: float
    slow: tuple[tuple[int, float], ...] = ()
    steps: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Scene:
    """A command, on virtual hosts or on this machine. Of its output the blocks are shown that
    contain one of these texts, and of its report the figure with this title."""

    words: str
    blocks: tuple[str, ...]
    says: str = ""
    links: Links | None = None
    figure: str = ""
    most_lines: int = 24


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    published: str
    scenes: tuple[Scene, ...]
    not_here: str


CHAPTERS = (
    Chapter(
        "ec2",
        "MPI over several TCP connections",
        "MPI over Multiple TCP Connections on EC2 C5n Instances (2019): two nodes with 100 Gb/s.",
        (
            Scene(
                "experiment=ec2_streams scale=cpu part=1",
                ("at the end", "ours and published"),
                "iperf3 has one thread for all streams (`one`), iperf2 a thread for each (`each`).",
            ),
            Scene(
                "experiment=ec2_streams scale=cpu part=2",
                ("OMPI_MCA_btl_tcp_links", "ours and published"),
                "osu_bw with one connection and with 36.",
                figure="p2p_bandwidth",
            ),
            Scene(
                "experiment=ec2_streams scale=cpu part=3",
                ("p2p_multi_pair", "ours and published"),
                "osu_mbw_mr: MB/s and messages per second.",
            ),
        ),
        "100 Gb/s, 72 pairs. `limit=100Gb/s` adds the share of a line rate that no driver tells.",
    ),
    Chapter(
        "openbsd",
        "Every pair of a small cluster, and how a connection reaches full speed",
        "Experiences with Numerics on OpenBSD 5: MPI Networking (2020): four nodes, 1 Gb/s.",
        (
            Scene(
                "experiment=openbsd_pairs timing.duration_s=2",
                ("senders down", "symmetric", "takes", "at the end"),
                f"Four virtual hosts with {FAST:g} Mb/s; the third sends with half of it.",
                Links(4, FAST, slow=((2, FAST / 2),)),
                most_lines=34,
            ),
            Scene(
                "experiment=openbsd_soak part=1 layout=2x1 pairs=[[0,1]] timing.duration_s=4",
                ("at the end", "first second", "ours and published"),
                "The rate of the first host has three steps, at 0, 0.4 and 1.0 s, as in the note.",
                Links(2, FAST, steps=STEPS),
                figure="stream",
            ),
            Scene(
                "experiment=openbsd_soak scale=cpu part=2",
                ("at the end", "ours and published"),
                "Fresh connections with five of the 52 write buffers, over loopback.",
            ),
        ),
        "Hours of 1000 s each; OpenBSD's kernel and its sysctls.",
    ),
    Chapter(
        "enhanced",
        "Two settings of a network",
        "Enhanced Networking in the AWS Cloud, parts 1 and 2 (2013, 2014): c3, up to 10 Gb/s.",
        (
            Scene(
                "experiment=ec2_enhanced label=A limit=400Mb/s timing.duration_s=3",
                ("of limit",),
                "Setting A: a link with 380 Mb/s of the 400 that `limit` states.",
                Links(2, 380.0),
            ),
            Scene(
                "experiment=ec2_enhanced label=B limit=400Mb/s timing.duration_s=3",
                ("of limit",),
                "Setting B: 264 Mb/s.",
                Links(2, 264.0),
            ),
            Scene(
                "compare RESULTS --by label=B:A",
                ("NEW / BASE", "gain", "round trip"),
                "A against B.",
            ),
            Scene("report RESULTS", ("ours and published",)),
        ),
        "Xen and SR-IOV; limits by instance type; a longer round trip (this kernel has no netem).",
    ),
    Chapter(
        "quiz",
        "The MPI quiz",
        "A page of the same blog: 20 ranks send 5 ints to each other from one buffer, all at once.",
        (Scene("experiment=exchange_quiz scale=cpu", ("exchange",), most_lines=40),),
        "20 ranks at once on two cores.",
    ),
    Chapter(
        "mvapich",
        "Libraries against each other in the cloud",
        "MVAPICH Touches the Cloud (2020): EFA and Azure's HC, up to 32 nodes of 36 ranks.",
        (
            Scene(
                "experiment=mvapich_cloud scale=cpu",
                ("openmpi", "ours and published"),
                most_lines=44,
            ),
        ),
        "EFA and InfiniBand. Applications are out of scope: `commbench replay` stands for them.",
    ),
    Chapter(
        "mlbench",
        "Backends and layouts",
        "Benchmarking Communication Backend (MLBench, 2018): K80s on Google Cloud, NCCL and MPI.",
        (
            Scene(
                "experiment=mlbench_allreduce scale=cpu",
                ("all_reduce", "ours and published"),
                "gloo in NCCL's place. algbw is size over time, as the post counts it.",
                figure="all_reduce",
                most_lines=40,
            ),
            Scene(
                "experiment=mlbench_p2p scale=cpu",
                ("shared_memory", "ours and published"),
                "Shared memory in place of CUDA IPC, TCP in place of the network.",
                most_lines=30,
            ),
        ),
        "GPUs: CUDA IPC on and off, `nvidia-smi topo -m`, four layouts of 8 GPUs.",
    ),
)
