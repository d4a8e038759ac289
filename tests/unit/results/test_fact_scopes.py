"""One table says which facts may differ: the first row that matches counts, and every row can be
reached."""

from __future__ import annotations

from typing import get_args, get_type_hints

from loops import for_each

from commbench.results.fact_scopes import FactScope, fact_scopes, scope_of

WORDS = {
    name: set(get_args(words))
    for name, words in get_type_hints(FactScope).items()
    if name != "pattern"
}


@for_each(
    ("fact", "ranks", "restarts", "runs"),
    [
        ("versions.torch", "error", "equal", "show"),
        ("environment.NCCL_ALGO", "error", "equal", "show"),
        ("environment.NCCL_SOCKET_IFNAME", "network", "equal", "show"),
        ("environment.COMMBENCH_TCP_INTERFACE", "network", "any", "ignore"),
        ("environment.COMMBENCH_FOLDER", "error", "any", "ignore"),
        ("environment.SLURM_JOB_ID", "record", "any", "show"),
        ("run.digest", "error", "any", "ignore"),
        ("run.bind", "record", "any", "show"),
        ("gpu.own.name", "error", "equal", "show"),
        ("gpu.own.uuid", "node", "any", "show"),
        ("host.hostname", "node", "equal", "show"),
        ("host.kernel", "record", "equal", "show"),
        ("host.load_1min", "ignore", "any", "ignore"),
        ("host.virtualization", "record", "any", "show"),
        ("gpu.0.virtualization", "ignore", "any", "ignore"),
        ("gpu.0.nvlink_version", "ignore", "any", "ignore"),
        ("peer.0-1.can_access", "ignore", "any", "ignore"),
        ("limits.memlock_bytes", "record", "any", "show"),
    ],
)
def test_the_scope_of_a_fact(fact: str, ranks: str, restarts: str, runs: str) -> None:
    scope = scope_of(fact)
    assert (scope.ranks, scope.restarts, scope.runs) == (ranks, restarts, runs)


@for_each("scope", fact_scopes())
def test_every_row_is_reached_and_uses_known_words(scope) -> None:  # type: ignore[no-untyped-def]
    example = (
        scope.pattern.replace("*", "x")
        if scope.pattern.startswith("*")
        else scope.pattern.replace("*", "")
    )
    assert scope_of(example) is scope
    for column, words in WORDS.items():
        assert getattr(scope, column) in words


def test_only_the_digest_is_never_written_down() -> None:
    assert [scope.pattern for scope in fact_scopes() if scope.record == "no"] == ["run.digest"]
