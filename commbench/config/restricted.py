"""What a file may not set, because it loads code, starts programs or writes files. The command line
may."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from commbench.core.errors import ConfigError

# environment variables that a file may set: values of communication libraries and of threads. Any
# other may name a library, a program or a file that is written
FILE_VARIABLES = re.compile(
    r"NCCL_(?:ALGO|PROTO|NTHREADS|BUFFSIZE|NSOCKS_PERTHREAD|CROSS_NIC|NET|LAUNCH_MODE|DEBUG_SUBSYS)"
    r"|NCCL_(?:DEBUG|DMABUF_ENABLE|GDRCOPY_ENABLE|GDRCOPY_SYNC_ENABLE|MULTI_RANK_GPU_ENABLE)"
    r"|NCCL_(?:MIN|MAX|P2P|SHM|SOCKET|IB|NET_GDR|NET_SHARED|COLLNET|NVLS|CUMEM|PXN|MNNVL|LL)_\w+"
    r"|TORCH_NCCL_(?:AVOID_RECORD_STREAMS|BLOCKING_WAIT|CUDA_EVENT_CACHE|HIGH_PRIORITY|NAN_CHECK)"
    r"|CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING)"
    r"|GLOO_SOCKET_IFNAME"
    r"|OMPI_MCA_(?:pml|btl|mtl|osc|coll)(?:_\w+)?"
    r"|MPIR_CVAR_(?:CH4|COLL|\w+_INTRA_ALGORITHM|\w+_INTER_ALGORITHM)(?:_\w+)?"
    r"|UCX_(?:TLS|NET_DEVICES|PROTO_ENABLE|LOG_LEVEL|MEMTYPE_CACHE|\w+_THRESH|MAX_\w+_RAILS)"
    r"|UCX_(?:RNDV|RC|UD|DC|IB|TCP|CUDA_COPY|CUDA_IPC)_\w+"
    r"|FI_(?:PROVIDER|LOG_LEVEL)|FI_(?:TCP|VERBS|EFA|CXI|OFI_RXM|PSM3|MR)_\w+"
    r"|(?:OMP|MKL|OPENBLAS)_NUM_THREADS|OMP_(?:PROC_BIND|PLACES)|KMP_(?:AFFINITY|BLOCKTIME)"
)
NAMES_A_FILE = re.compile("PATH|FILE|DIR|LIB|MODULE|PLUGIN|DUMP|COMMAND", re.IGNORECASE)
# key -> what setting it does; a library by its name is harmless, one by its path is not
RESTRICTED = {
    "allow": "permits foreign modules",
    "backend.library": "loads a library",
    "launcher.agent": "starts programs",
    "launcher.options": "starts programs",
}
SEARCHED = "hydra.searchpath="
COMPUTED_HYDRA_KEYS = ("runtime", "searchpath", "overrides.task", "job.override_dirname")


def why_restricted(key: str, value: Any) -> str | None:
    """Why only the command line may set this key to this value; None if a file may, too."""
    if key.startswith("env."):
        name = key.removeprefix("env.")
        is_value = FILE_VARIABLES.fullmatch(name) and not NAMES_A_FILE.search(name)
        return None if is_value else "may load code or write files"
    is_name = key == "backend.library" and "/" not in str(value)
    return RESTRICTED.get(key) if value and not is_name else None


def check_file_settings(config: DictConfig, given: Collection[str]) -> None:
    """Raises ConfigError for a restricted setting of a composed configuration whose key the user
    has not `given`.

    Raises OmegaConfBaseException for one that refers to a key that does not exist.
    """
    settings = {key: OmegaConf.select(config, key) for key in RESTRICTED}
    env = config.get("env")
    settings |= {f"env.{name!s}": None for name in env} if isinstance(env, DictConfig) else {}
    for key, value in settings.items():
        why = why_restricted(key, value)
        if why is not None and key not in given:
            seen = key if value is None else f"{key}={value}"
            raise ConfigError(
                f"a file sets {seen}, which {why}; give {key}=... on the command line"
            )


def check_file_override(key: str, override: str) -> None:
    """The same for an override in an experiment's file, which looks as if the user had given it.

    Whole mappings, and all of Hydra's and the launcher's own keys, are refused.
    """
    whole = key in ("allow", "env") or key.startswith(("hydra", "launcher."))
    if whole or why_restricted(key, override.partition("=")[2]) is not None:
        raise ConfigError(
            f"an experiment's file sets {override}; what loads code is given on the command line"
            " only"
        )


def check_hydras_part(config: DictConfig, chosen: Sequence[str]) -> None:
    """Raises ConfigError where a file sets what makes Hydra load code, start programs or write
    files.

    So all that Hydra reads below `hydra` must be what it is without the user's files.
    """
    given = [word for word in chosen if word.lstrip("+~").startswith("hydra")]
    expected = _hydra_settings(compose("config", overrides=given, return_hydra_config=True))
    composed = _hydra_settings(config)
    for key in sorted({*composed, *expected}):
        if composed.get(key) != expected.get(key):
            raise ConfigError(
                f"a file sets hydra.{key}; give hydra.{key}=... on the command line, and a sweep as"
                " a line of `parts`"
            )


def _hydra_settings(config: DictConfig) -> dict[str, Any]:
    """Each key below `hydra` with its value, without those that Hydra computes."""
    node: Any = OmegaConf.to_container(config.hydra, resolve=False)
    words = node["overrides"]["hydra"]
    node["overrides"]["hydra"] = [word for word in words if not word.startswith(SEARCHED)]
    settings = dict[str, Any]()
    for group, values in node.items():
        inner = values.items() if isinstance(values, dict) else [("", values)]
        settings |= {f"{group}.{name}".rstrip("."): value for name, value in inner}
    computed = tuple(f"{key}." for key in COMPUTED_HYDRA_KEYS)
    return {key: value for key, value in settings.items() if not f"{key}.".startswith(computed)}
