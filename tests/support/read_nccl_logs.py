"""What the reader of a rank's log has read."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.core.case import Planned
from commbench.measure.nccl_evidence import LogReader, NcclEvidence

LINE = "h:1:2 [0] NCCL INFO Channel 00/0 : {}[0] -> {}[1] via {}\n"


def read(*looks: tuple[str, tuple[int, ...]], visited: Sequence[Planned] = ()) -> NcclEvidence:
    """What a rank has seen: texts that a log grew by, and the ranks that used a communicator
    then; all in visits of these cases."""
    reader = LogReader()
    text = ""
    row_ids = [row_id for planned in visited for row_id in planned.case.row_ids]
    for more, members in looks:
        text += more
        reader.read({"nccl_log": text}, members, row_ids)
    return reader.own
