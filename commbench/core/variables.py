"""The independent variables of a case, in one table: the fields of Variables, with what the rest
of commbench needs to know about each.

Derived from it: the keys of the configuration, the axes of a plan, columns, titles and order of
tables, case ids, what a comparison and a report set side by side. To add a variable, add its field
here and the default of its key to conf/config.yaml.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, get_args, get_type_hints

from .units import format_bytes, parse_pairs, short_pairs

Engine = Literal["python", "native", "virtual"]
MODEL_ENGINE: Engine = "virtual"
TimerName = Literal["host", "host_sync", "device_event", "graph", "throughput"]
# by events of the GPU
EVENT_TIMED: tuple[TimerName, ...] = ("device_event", "graph", "throughput")
# of several samples between two stamps
BATCH_TIMED: tuple[TimerName, ...] = ("graph", "throughput")
Sync = Literal["barrier", "none"]
Device = Literal["cpu", "cuda"]
Schedule = Literal["serial", "rounds"]
Staging = Literal["none", "library", "pinned"]
Cache = Literal["warm", "rotate"]
BufferUse = Literal["own", "shared"]
StreamThreads = Literal["one", "each"]
ReductionName = Literal["sum", "prod", "min", "max", "avg"]
Ipc = Literal["auto", "on", "off"]
Binding = Literal["auto", "core", "numa", "none"]
Gaps = Literal["none", "sleep", "matmul"]
Splits = Literal["even", "resampled"]
Overlap = Literal["sleep", "memory", "matmul"]
PayloadName = Literal["rounding"]
Registration = Literal["none", "local", "symmetric"]
Algorithm = Literal["one_shot", "two_shot", "multimem"]
Until = Literal["open", "first_call"]
Timed = Literal["communication", "compute", "compute_beside", "together"]
Options = tuple[tuple[str, str], ...]  # names and values, sorted

Kind = Literal["text", "integer", "number", "flag", "map", "texts", "numbers", "integers", "time"]
Scope = Literal["all", "operation", "pairs", "backend"]

KIND_OF_TYPE: dict[Any, Kind] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "flag",
    Options: "map",
    tuple[str, ...]: "texts",
    tuple[float, ...]: "numbers",
    tuple[int, ...]: "integers",
    datetime: "time",
}
NO_DTYPE = "none"  # of an operation without a message
SIZES = ("message_bytes", "elements")  # what the rows of a curve differ in
INT64_MAX = 2**63 - 1
REQUIRED = object()  # no default


@dataclass(frozen=True)
class Variable:
    """What is known of one variable; its name and kind (text, integer, flag or map) are those of
    the field of Variables.

    default: left out of case ids, titles and tables; REQUIRED for one that every case has. usual:
    another value that titles and tables leave out. null: the word for None in its key. key: whether
    the configuration has a key of this name. choices: the values of that key, where they are
    listed. axis: a list of values makes an axis inside one run. applies_to: `operation` or
    `backend`, whose `axes` must name it, `pairs` (and such a backend), or `all`. shown: in a run's
    title where all rows share it, else as a column. bare: a title gives the value without the name.
    implied_by: the variable that brings it along in a comparison. beside: runs that differ in it
    are columns of one table. feature: the folder of `features` that its key needs. untried: values
    that have not run on a GPU yet, as the first line of a run on one says.
    """

    meaning: str
    name: str = ""
    kind: Kind = "text"
    unit: str = ""
    default: Any = REQUIRED
    usual: Any = None
    null: str | None = None
    key: bool = True
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = INT64_MAX
    axis: bool = False
    applies_to: Scope = "all"
    shown: bool = True
    bare: bool = False
    implied_by: str | None = None
    beside: bool = False
    feature: str | None = None
    untried: tuple[str, ...] = ()


def variable(meaning: str, **facts: Any) -> Any:
    """A field of Variables; `facts` are fields of Variable."""
    known = Variable(meaning, **facts)
    default = dataclasses.MISSING if known.default is REQUIRED else known.default
    return field(default=default, metadata={"variable": known})


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The independent variables of a case or of a row, in the order in which tables are sorted; one
    that does not apply is None."""

    benchmark: str = variable("operation that was measured", bare=True, key=False)
    backend: str = variable(
        "library that moved the bytes", shown=False, bare=True, beside=True, key=False
    )
    layout: str = variable("nodes x ranks per node", bare=True, key=False)
    engine: Engine = variable(
        "python: what a training script sees; native: what C sees; virtual: simulated",
        choices=("auto", "python", "native"),
        axis=True,
        bare=True,
        implied_by="backend",
        beside=True,
    )
    dtype: str = variable(
        "element type",
        default=NO_DTYPE,
        bare=True,
        untried=("float8_e4m3fn", "float8_e5m2"),
        key=False,
    )
    schedule: Schedule | None = variable(
        "order of several pairs: serial, rounds",
        default=None,
        usual="serial",
        choices=get_args(Schedule),
    )
    pair: str | None = variable(
        "ranks of a point-to-point case; several pairs run at once",
        default=None,
        implied_by="layout",
        key=False,
    )
    node: str | None = variable(
        "node whose ranks run the operation among themselves; several nodes run at once",
        default=None,
        key=False,
    )
    root: int | None = variable(
        "root rank of a rooted collective",
        default=None,
        axis=True,
        applies_to="operation",
    )
    streams: int | None = variable(
        "parallel connections of a pair",
        default=None,
        least=1,
        most=64,
        axis=True,
        applies_to="pairs",
        implied_by="backend",
        beside=True,
    )
    stream_threads: StreamThreads | None = variable(
        "what drives the connections of a stream: one thread (as iperf3) or a thread each (iperf2)",
        default=None,
        choices=get_args(StreamThreads),
        axis=True,
        applies_to="operation",
    )
    message_bytes: int = variable(
        "bytes of the message; the total where a collective divides it",
        unit="B",
        shown=False,
        key=False,
    )
    elements: int = variable("elements of one block", shown=False, key=False)
    window: int | None = variable(
        "messages in flight",
        default=None,
        least=1,
        most=16384,  # each message in flight is a step of the program
        axis=True,
        applies_to="operation",
    )
    in_place: bool | None = variable(
        "send and receive buffer are the same",
        default=None,
        axis=True,
        applies_to="operation",
    )
    reduction: ReductionName | None = variable(
        "operation of a reduction",
        default=None,
        choices=get_args(ReductionName),
        axis=True,
        applies_to="operation",
        bare=True,
    )
    payload: PayloadName | None = variable(
        "values that are added: rounding: their sum depends on the order; null: integers, exact in"
        " every order",
        default=None,
        choices=("integers", *get_args(PayloadName)),
        null="integers",
        axis=True,
        applies_to="operation",
        feature="accuracy",
        untried=get_args(PayloadName),
    )
    traffic: str | None = variable(
        "who sends how much to whom: a pattern, a model of experts, a file with its digest",
        default=None,
        null="uniform",
        axis=True,
        applies_to="operation",
        feature="traffic",
    )
    workload: str | None = variable(
        "job whose communication is replayed: a generator, or a file's name and digest; with a"
        " number, one of its operations alone",
        default=None,
        applies_to="operation",
    )
    gaps: Gaps | None = variable(
        "what a rank does in the times between the operations of a job: none, sleep, matmul",
        default=None,
        usual="none",
        choices=get_args(Gaps),
        axis=True,
        applies_to="operation",
    )
    late: str | None = variable(
        "rank that begins each operation of a job later, and by how much",
        default=None,
        axis=True,
        applies_to="operation",
    )
    splits: Splits | None = variable(
        "counts of an all_to_all_v of a job: even or resampled where they are not known or of ranks"
        " that are not there; null: as recorded, or it is left out",
        default=None,
        choices=("recorded", *get_args(Splits)),
        null="recorded",
        axis=True,
        applies_to="operation",
    )
    overlap: Overlap | None = variable(
        "what the ranks compute while the operation goes on: sleep, memory (copies), matmul",
        default=None,
        choices=("none", *get_args(Overlap)),
        null="none",
        axis=True,
        feature="overlap",
    )
    compute: str | None = variable(
        "time of that computation alone, as 100us; null: about that of the communication alone",
        default=None,
        feature="overlap",
    )
    timed: Timed | None = variable(
        "of an overlap: communication, compute (each alone), compute_beside (the computation, while"
        " the operation goes on), together (until both have ended)",
        default=None,
        feature="overlap",
        key=False,
    )
    groups: str | None = variable(
        "operations that groups of ranks run at once; [ ] around the one whose time is taken",
        default=None,
        null="all_reduce@world + all_gather@world",
        axis=True,
        applies_to="operation",
        feature="groups",
    )
    until: Until | None = variable(
        "of opening a communicator: until it is open, or has done its first call (a barrier)",
        default=None,
        choices=get_args(Until),
        axis=True,
        applies_to="operation",
        untried=get_args(Until),
    )
    split: int | None = variable(
        "groups of neighbours that a communicator is split into",
        default=None,
        least=1,
        axis=True,
        applies_to="operation",
    )
    buffers: BufferUse | None = variable(
        "own: each message of a window has its own memory; shared: all share one buffer",
        default=None,
        choices=get_args(BufferUse),
        axis=True,
        applies_to="operation",
    )
    staging: Staging = variable(
        "who copies between device and host in the timed steps: none, library, pinned",
        default="none",
        choices=("auto", "none", "pinned"),
    )
    cache: Cache = variable(
        "warm: the same buffers each time; rotate: in turn, more copies than the cache holds",
        choices=("auto", *get_args(Cache)),
        shown=False,
    )
    sync: Sync = variable(
        "how repetitions are started together: barrier, none",
        choices=get_args(Sync),
        shown=False,
    )
    device: Device = variable(
        "where the buffers are: cpu, cuda",
        default="cpu",
        choices=("auto", *get_args(Device)),
        bare=True,
        beside=True,
    )
    timer: TimerName = variable(
        "how time is taken: host on a CPU; on a GPU host_sync, device_event, graph, throughput",
        default="host",
        choices=("auto", *get_args(TimerName)),
        axis=True,
    )
    timing: str = variable(
        "policy that decided the number of repetitions", shown=False, bare=True, key=False
    )
    cuda_ipc: Ipc = variable(
        "CUDA IPC as requested: auto, on, off",
        default="auto",
        choices=get_args(Ipc),
        shown=False,
        beside=True,
    )
    registration: Registration = variable(
        "what the library registers its buffers as: none, local, symmetric (windows)",
        default="none",
        choices=get_args(Registration),
        axis=True,
        implied_by="backend",
        beside=True,
        untried=("local", "symmetric"),
    )
    algorithm: Algorithm | None = variable(
        "how a collective on symmetric memory goes: one_shot, two_shot, multimem (by the switch)",
        default=None,
        choices=("all", *get_args(Algorithm)),
        axis=True,
        applies_to="backend",
        implied_by="backend",
        beside=True,
        untried=get_args(Algorithm),
    )
    interface: str | None = variable(
        "network interface as requested", default=None, shown=False, beside=True
    )
    env: Options = variable(
        "environment exported for this run",
        default=(),
        shown=False,
        bare=True,
        beside=True,
        key=False,
    )
    library: str | None = variable(
        "library and version, as reported by the library once it was open",
        default=None,
        shown=False,
        bare=True,
        implied_by="backend",
        beside=True,
        key=False,
    )
    bind: Binding = variable(
        "how ranks were bound to cores, as requested: auto, core, numa, none",
        default="auto",
        choices=get_args(Binding),
        shown=False,
        beside=True,
    )
    backend_options: Options = variable(
        "parameters of the backend",
        default=(),
        shown=False,
        bare=True,
        implied_by="backend",
        beside=True,
        key=False,
    )

    @property
    def has_model_clock(self) -> bool:
        """Whether its times are those of a model, and no clock was read."""
        return self.engine == MODEL_ENGINE

    @property
    def is_round(self) -> bool:
        """Whether several pairs run at once, with a row for each."""
        return self.schedule == "rounds" and len(self.pairs) > 1

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """`pair` as rank pairs: "0-1" is one, "0-2 1-3" are two at once."""
        return tuple(parse_pairs(self.pair))


@dataclass(frozen=True, kw_only=True)
class Case(Variables):
    """One point of the independent variables."""

    @cached_property
    def case_id(self) -> str:
        """A hash of the variables that differ from their default, equal in every run that measures
        the same point, also by a commbench with more variables."""
        values = {
            each.name: getattr(self, each.name)
            for each in TABLE
            if getattr(self, each.name) != each.default
        }
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def row_ids(self) -> tuple[str, ...]:
        """The case_id of each of `single_cases`."""
        return tuple(single.case_id for single in self.single_cases)

    @property
    def single_cases(self) -> tuple[Case, ...]:
        """The case of each row: a round of pairs has a row per pair, nodes at once one per node."""
        if self.node is not None and " " in self.node:
            return tuple(dataclasses.replace(self, node=node) for node in self.node.split())
        if not self.is_round:
            return (self,)
        return tuple(dataclasses.replace(self, pair=pair) for pair in str(self.pair).split())

    @cached_property
    def pair_by_rank(self) -> dict[int, tuple[int, int]]:
        """The pair of each rank that has one."""
        return {rank: pair for pair in self.pairs for rank in pair}

    @property
    def threads_of_streams(self) -> int:
        """How many threads of a rank drive its connections."""
        return 1 if self.stream_threads == "one" else self.streams or 1

    @property
    def mode(self) -> Mode:
        return Mode(
            engine=self.engine,
            sync=self.sync,
            streams=self.streams or 1,
            stream_threads=self.stream_threads or "one",
            timer=self.timer,
            device=self.device,
            staging=self.staging,
            registration=self.registration,
            algorithm=self.algorithm,
        )

    def __str__(self) -> str:
        where = f" {short_pairs(self.pair)}" if self.pair else ""
        what = f" {self.dtype} {format_bytes(self.message_bytes)}" if self.message_bytes else ""
        return f"{self.benchmark} {self.layout}{where}{what}"


@dataclass(frozen=True)
class Mode:
    """How a program is run: what a backend must know beside the steps to lower them.

    `sync` None: no barrier at all. `fresh`: over connections that nothing has used. `connected`:
    the steps have run before, so they may be captured in a graph. `groups`: the open communicators
    of the groups that steps name, of which this process hosts a rank. `samples`: between two stamps
    (Program.repeated). `visit`: the case, launch and visit, of which simulated noise is drawn.
    """

    engine: Engine
    sync: Sync | None = "none"
    streams: int = 1
    stream_threads: StreamThreads = "one"
    fresh: bool = False
    timer: TimerName = "host"
    device: Device = "cpu"
    staging: Staging = "none"
    registration: Registration = "none"
    algorithm: Algorithm | None = None
    connected: bool = False
    samples: int = 1
    groups: Mapping[tuple[int, ...], Any] = field(default_factory=dict, compare=False)
    visit: str = field(default="", compare=False)


def _table() -> tuple[Variable, ...]:
    hints = get_type_hints(Variables)
    return tuple(
        dataclasses.replace(
            each.metadata["variable"], name=each.name, kind=kind_of(hints[each.name])
        )
        for each in dataclasses.fields(Variables)
    )


def kind_of(hint: Any) -> Kind:
    """The kind of a column with values of a type, which may also be None."""
    if hint in KIND_OF_TYPE:
        return KIND_OF_TYPE[hint]
    choices = [choice for choice in get_args(hint) if choice is not type(None)]
    return "text" if all(isinstance(choice, str) for choice in choices) else kind_of(choices[0])


TABLE = _table()
BY_NAME = {each.name: each for each in TABLE}
NAMES = tuple(BY_NAME)
MAPS = tuple(each.name for each in TABLE if each.kind == "map")
SHOWN = tuple(each.name for each in TABLE if each.shown)
AXES = tuple(each.name for each in TABLE if each.axis)


def brought_along(name: str) -> tuple[str, ...]:
    """The variables that a choice of this one implies, as a backend its engine; with a layout come
    its hosts, an identity."""
    return (
        *(each.name for each in TABLE if each.implied_by == name),
        *(("hosts",) if name == "layout" else ()),
    )


def is_required(name: str) -> bool:
    """Whether each case has a value of this variable."""
    return name in BY_NAME and BY_NAME[name].default is REQUIRED


def is_usual(name: str, value: Any) -> bool:
    """Whether titles and tables leave this value of a column out."""
    if value is None or name not in BY_NAME:
        return value is None
    return value in (BY_NAME[name].default, BY_NAME[name].usual)


def is_number(name: str) -> bool:
    """Whether the values of a variable are numbers, which stand on the right in a table."""
    return name in BY_NAME and BY_NAME[name].kind == "integer"
