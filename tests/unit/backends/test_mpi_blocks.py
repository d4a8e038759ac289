"""Which of MPI's two functions takes blocks of different length."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from commbench.backends.mpi.lowering import CountedBlocks, alltoallv_name
from commbench.core.errors import Unsupported
from commbench.core.program import View

WITH = SimpleNamespace(MPI_Alltoallv_c=None)
WITHOUT = SimpleNamespace()
NAME = "MPI_Alltoallv"


@pytest.mark.parametrize("counts", [(11, 0), (6, 6, 0)])
def test_blocks_that_begin_or_end_beyond_the_limit_need_the_large_count_form(
    counts: tuple[int, ...],
) -> None:
    blocks = (CountedBlocks(View("small"), (1, 0, 1)), CountedBlocks(View("large"), counts))
    assert alltoallv_name(WITH, NAME, blocks, limit=12) == "MPI_Alltoallv"
    assert alltoallv_name(WITHOUT, NAME, blocks, limit=12) == "MPI_Alltoallv"
    assert alltoallv_name(WITH, NAME, blocks, limit=10) == "MPI_Alltoallv_c"
    with pytest.raises(Unsupported, match="no MPI_Alltoallv_c"):
        alltoallv_name(WITHOUT, NAME, blocks, limit=10)
