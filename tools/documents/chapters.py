"""The documents, what of them one machine can measure, and what it can't."""

from __future__ import annotations

from dataclasses import dataclass

FAST = 470.0  # Mb/s: half of gigabit Ethernet, as much as two cores carry between virtual hosts
STEPS = ((0.0, 160.0), (0.4, 360.0), (1.0, FAST))  # those of the note, halved
LINE = 400.0
ENHANCED = 0.95 * LINE
PLAIN = 0.66 * LINE  # ENHANCED is 1.44 x of it, as in the post
PUBLISHED = "ours and published"


@dataclass(frozen=True)
class Links:
    """Of virtual hosts, in Mb/s. `slow` are hosts that send more slowly; `steps` are the rates of
    the first host, so many seconds after it begins to send."""

    hosts: int
    rate_mbit: float
    slow: tuple[tuple[int, float], ...] = ()
    steps: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Scene:
    """A command, on virtual hosts or on this machine. Of its output the blocks are shown that
    contain one of these regular expressions, and of its report the figure whose title begins like
    this, with a caption."""

    words: str
    blocks: tuple[str, ...]
    says: str = ""
    links: Links | None = None
    figure: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Chapter:
    """`published` is the document, `finding` its answer."""

    name: str
    title: str
    published: str
    finding: str
    scenes: tuple[Scene, ...]
    not_here: str


def _enhanced(words: str, rate_mbit: float, says: str) -> Scene:
    """Launches of a setting of the network."""
    command = f"-m experiment=ec2_enhanced limit={LINE:g}Mb/s timing.duration_s=1 label={words}"
    return Scene(command, (), says, Links(2, rate_mbit))


CHAPTERS = (
    Chapter(
        "ec2",
        "MPI over several TCP connections",
        "MPI over Multiple TCP Connections on EC2 C5n Instances (2019): two nodes with 100 Gb/s.",
        "One connection reached 9.5 Gb/s, four in one thread 25 Gb/s, 36 with a thread each 93"
        " Gb/s; Open MPI was 2.4 times as fast with 36 connections as with one.",
        (
            Scene(
                "experiment=ec2_streams scale=cpu part=1",
                ("at the end", PUBLISHED),
                "iperf3 has one thread for all streams (`one`), iperf2 a thread for each (`each`):"
                " over loopback, 36 streams then have 72 threads on these two cores.",
            ),
            Scene(
                f"experiment=ec2_streams part=1 limit={LINE:g}Mb/s streams=[1,4,36]"
                " stream_threads=[each]",
                ("at the end", PUBLISHED),
                f"The share of the line rate, on virtual hosts with {ENHANCED:g} Mb/s. `limit`"
                f" states the line rate: here {LINE:g} Mb/s, there `limit=100Gb/s`.",
                Links(2, ENHANCED),
            ),
            Scene(
                "show last --intervals",
                (r"^stream .* streams 4: \d+ MB",),
                "Its intervals with four connections, as iperf prints their sum.",
            ),
            Scene(
                "experiment=ec2_streams scale=cpu part=2",
                ("±: ", PUBLISHED),
                "osu_bw with one connection and with 36, over loopback.",
                figure="p2p_bandwidth: bandwidth",
                caption="Bandwidth over size with 1 and with 36 connections; dotted: the post's.",
            ),
            Scene(
                "experiment=ec2_streams scale=cpu part=3",
                ("p2p_multi_pair", PUBLISHED),
                "osu_mbw_mr: MB/s and messages per second, of two pairs instead of 72.",
            ),
        ),
        "100 Gb/s, 72 pairs.",
    ),
    Chapter(
        "openbsd",
        "Every pair of a small cluster, and how a connection reaches full speed",
        "Experiences with Numerics on OpenBSD 5: MPI Networking (2020): four nodes, 1 Gb/s.",
        "936 Mb/s between any two nodes, the same in both directions, but a fresh connection takes"
        " about a second, in three steps, to get there.",
        (
            Scene(
                f"experiment=openbsd_pairs timing.duration_s=2 limit={FAST:g}Mb/s",
                ("senders down", "at the end", "first second", PUBLISHED),
                f"Four virtual hosts with {FAST:g} Mb/s; the third sends with half of it.",
                Links(4, FAST, slow=((2, FAST / 2),)),
            ),
            Scene(
                "experiment=openbsd_soak part=1 layout=2x1 pairs=[[0,1]] timing.duration_s=4"
                f" limit={FAST:g}Mb/s",
                ("initial window", "at the end", "first second", PUBLISHED),
                "The rate of the first host has the note's three steps, halved (160, 360 and 470"
                " Mb/s, at 0, 0.4 and 1.0 s): 0.5 x is right.",
                Links(2, FAST, steps=STEPS),
                figure="tcp, stream",
                caption="The planted staircase in intervals of 0.1 s; dotted: the note's.",
            ),
            Scene(
                "experiment=openbsd_soak scale=cpu part=2",
                ("at the end", PUBLISHED),
                "Fresh connections with five of the 52 write buffers, over loopback, no step"
                " planted.",
                figure="to the end",
                caption="Time to full speed of each connection.",
            ),
        ),
        "Hours of 1000 s each; OpenBSD's kernel and its sysctls (run.json has Linux's).",
    ),
    Chapter(
        "enhanced",
        "Two settings of a network",
        "Enhanced Networking in the AWS Cloud, parts 1 and 2 (2013, 2014): c3, up to 10 Gb/s.",
        "With enhanced networking the throughput was 44 % higher, 95 % of the line rate instead of"
        " 68 %; on smaller instances the round trip was up to 2.37 times as fast.",
        (
            # in turn: a drift of the machine is on both sides
            _enhanced(
                "A trial=0,1",
                ENHANCED,
                f"Setting A: virtual hosts with {ENHANCED:g} of the {LINE:g} Mb/s that `limit`"
                " states; the first two of five launches.",
            ),
            _enhanced("B trial=0,1,2,3,4", PLAIN, f"Setting B: {PLAIN:g} Mb/s; five launches."),
            _enhanced("A trial=2,3,4", ENHANCED, "The other launches of setting A."),
            Scene(
                "compare RESULTS --by label=B:A",
                ("cases ", "NEW / BASE"),
                f"Planted: {ENHANCED / PLAIN:.2f} x the bandwidth, the same round trip.",
            ),
            Scene("report RESULTS", (PUBLISHED,)),
        ),
        "Xen and SR-IOV; instances of these types, whose limits stand in the table; a longer round"
        " trip (this kernel has no netem).",
    ),
    Chapter(
        "quiz",
        "The MPI quiz",
        "A page of the same blog (2012): 20 ranks send 5 ints to each other from one buffer.",
        "The question was what recvbuf[i][i] of rank 17 is, for i from 0 to 19.",
        (
            Scene(
                "experiment=exchange_quiz layout=1x20 timing=quick",
                ("exchange ", "The quiz"),
                "The program as posted (`buffers=shared`), and with a buffer for each message.",
            ),
        ),
        "Twenty cores: these ranks share two, so the times say nothing.",
    ),
    Chapter(
        "mvapich",
        "Libraries against each other in the cloud",
        "MVAPICH Touches the Cloud (2020): EFA and Azure's HC, up to 32 nodes of 36 ranks.",
        "Curves of one MPI library against another; in numbers the slides have only factors, up to"
        " 25 (allreduce), 5 (bcast) and 100 (gather).",
        (
            Scene(
                "experiment=mvapich_cloud scale=cpu",
                ("±: ", "messages/s", PUBLISHED),
                "MPICH stands for MVAPICH2-X, which has its binary interface.",
                figure="p2p_latency: time",
                caption="Latency over size, Open MPI and MPICH.",
            ),
        ),
        "EFA ([clusters.md](clusters.md) has its facts) and InfiniBand. The applications are out of"
        " scope: MiniGhost (up to 10 % faster on 8 nodes), CloverLeaf (14.7 % on 16), Radix (3 x"
        " HPC-X on HC, 30 % on HB). `commbench replay` stands for a job"
        " ([workloads.md](workloads.md)).",
    ),
    Chapter(
        "mlbench",
        "Backends and layouts",
        "Benchmarking Communication Backend (MLBench, 2018): K80s on Google Cloud, NCCL and MPI.",
        "all_reduce in four layouts of 8 GPUs: with one or two GPUs a node NCCL was no faster than"
        " MPI, with 8 in one node it was; the post has a picture of it and no numbers. Between two"
        " nodes the network's 7.5 Gb/s were the bound.",
        (
            Scene(
                "experiment=mlbench_allreduce scale=cpu",
                ("±: ", PUBLISHED),
                "gloo in NCCL's place. algbw is size over time, as the post counts it.",
                figure="all_reduce: algbw",
                caption="Size over time, gloo and MPI, 2 and 4 ranks.",
            ),
            Scene(
                "report RESULTS",
                (r"^benchmark +ranks +message +best",),
                "The winner for each number of ranks and size, as far as it can be told.",
            ),
            Scene(
                "experiment=mlbench_p2p scale=cpu",
                ("±: ", PUBLISHED),
                "Shared memory in place of CUDA IPC, TCP in place of the network.",
            ),
        ),
        "GPUs: CUDA IPC on and off, four layouts of 8 GPUs. `commbench doctor` prints the topology"
        " matrix, topologyQuery's lines and NCCL's version; run.json has what a library prints at"
        " its end, and how long that takes (`closing`).",
    ),
)
