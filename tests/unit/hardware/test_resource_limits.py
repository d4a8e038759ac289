from __future__ import annotations

import pytest

from commbench.hardware import resource_limits

GIB = 1 << 30
MEMINFO = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"
V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def v2_tree(**files: str) -> dict[str, str]:
    """A job in /slurm/job_7; the files are named by level and file: top, slurm or job."""
    folders = {"top": "", "slurm": "slurm/", "job": "slurm/job_7/"}
    tree = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/slurm/job_7\n",
        "proc/self/mountinfo": V2_MOUNT,
    }
    for name, text in files.items():
        level, _, file = name.partition("_")
        tree[f"sys/fs/cgroup/{folders[level]}{file.replace('_', '.', 1)}"] = text
    return tree


def test_v2_smallest_limit_on_the_way_up(plant):
    root = plant(
        v2_tree(
            job_memory_max="max\n",
            job_memory_current="1000\n",
            slurm_memory_max=f"{8 * GIB}\n",
            slurm_memory_current=f"{3 * GIB}\n",
            slurm_memory_stat=f"anon 5\ninactive_file {2 * GIB}\nactive_file 7\n",
            job_cpu_max="max 100000\n",
            slurm_cpu_max="150000 100000\n",
        )
    )
    facts = resource_limits.collect(root)
    assert facts["limits.cgroup_memory_limit_bytes"] == 8 * GIB
    assert resource_limits.allocatable_bytes(root) == 7 * GIB
    assert facts["limits.cgroup_cpu_quota_cores"] == 1.5
    assert resource_limits.cpu_limit_cores(root) <= 1.5


def test_v2_without_limits_is_the_available_memory(plant):
    root = plant(v2_tree(job_memory_max="max", job_cpu_max="max 100000"))
    facts = resource_limits.collect(root)
    assert resource_limits.allocatable_bytes(root) == 32 * GIB
    assert "limits.cgroup_memory_limit_bytes" not in facts
    assert "limits.cgroup_cpu_quota_cores" not in facts


def test_a_full_group_leaves_nothing(plant):
    assert (
        resource_limits.allocatable_bytes(
            plant(v2_tree(job_memory_max="4096", job_memory_current="8192"))
        )
        == 0
    )


def test_zero_is_a_limit(plant):
    facts = resource_limits.collect(plant(v2_tree(job_memory_max="0")))
    assert facts["limits.cgroup_memory_limit_bytes"] == 0


def test_v1(plant):
    memory = "sys/fs/cgroup/memory"
    cpu = "sys/fs/cgroup/cpu,cpuacct"
    root = plant(
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": (
                "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n"
            ),
            "proc/self/mountinfo": V1_MOUNTS,
            f"{memory}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{memory}/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
            f"{memory}/docker/abc/memory.usage_in_bytes": f"{GIB}\n",
            f"{memory}/docker/abc/memory.stat": (
                f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n"
            ),
            f"{cpu}/cpu.cfs_quota_us": "-1\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
            f"{cpu}/docker/abc/cpu.cfs_quota_us": "50000\n",
            f"{cpu}/docker/abc/cpu.cfs_period_us": "100000\n",
        }
    )
    facts = resource_limits.collect(root)
    assert facts["limits.cgroup_memory_limit_bytes"] == 2 * GIB
    assert resource_limits.allocatable_bytes(root) == GIB + GIB // 2
    assert resource_limits.cpu_limit_cores(root) == 0.5


def test_hybrid_memory_v1_and_cpu_v2(plant):
    root = plant(
        {
            "proc/self/cgroup": "4:memory:/a\n0::/b\n",
            "proc/self/mountinfo": (
                V1_MOUNTS + V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
            ),
        }
    )
    memory = resource_limits.find_group(root, "memory")
    cpu = resource_limits.find_group(root, "cpu")
    assert memory == resource_limits.CgroupFolders(
        1, (root / "sys/fs/cgroup/memory/a", root / "sys/fs/cgroup/memory")
    )
    assert cpu == resource_limits.CgroupFolders(
        2, (root / "sys/fs/cgroup/unified/b", root / "sys/fs/cgroup/unified")
    )


@pytest.mark.parametrize(
    ("path", "inside", "folders"),
    [
        # no cgroup namespace
        ("/docker/abc/x", "/docker/abc", ["sys/fs/cgroup/x", "sys/fs/cgroup"]),
        ("/../../other", "/", ["sys/fs/cgroup"]),  # the group is outside of what can be seen
        ("/elsewhere", "/docker/abc", ["sys/fs/cgroup"]),
        ("/", "/", ["sys/fs/cgroup"]),
    ],
)
def test_paths_of_containers(plant, path, inside, folders):
    mount = V2_MOUNT.replace("0:26 / ", f"0:26 {inside} ")
    root = plant({"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": mount})
    assert resource_limits.find_group(root, "memory") == resource_limits.CgroupFolders(
        2, tuple(root / folder for folder in folders)
    )


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2.0),
        ("max 100000", None),
        ("-1 100000", None),
        ("1 0", None),
        ("0 100000", None),
        ("", None),
        ("7", None),
    ],
)
def test_cpu_max(text, cores):
    assert resource_limits.parse_cpu_max(text) == cores


def test_colons_in_a_path_and_spaces_in_a_mount_point(plant):
    groups = "4:memory:/a:b\n2:cpu,cpuacct:/c\nnonsense\n0::/d\n"
    mounts = V1_MOUNTS.replace("/sys/fs/cgroup", r"/sys/my\040cgroup")
    root = plant({"proc/self/cgroup": groups, "proc/self/mountinfo": mounts})
    top = root / "sys/my cgroup"
    assert resource_limits.find_group(root, "memory").folders == (
        top / "memory/a:b",
        top / "memory",
    )
    assert resource_limits.find_group(root, "cpu").folders == (
        top / "cpu,cpuacct/c",
        top / "cpu,cpuacct",
    )
    assert resource_limits.find_group(root, "io") == resource_limits.CgroupFolders()


def test_without_control_groups_no_limit_of_memory_is_known(tmp_path):
    assert resource_limits.allocatable_bytes(tmp_path) is None
    assert resource_limits.cpu_limit_cores(tmp_path) >= 1
    assert set(resource_limits.collect(tmp_path)) == {"limits.cpu_cores"}


def test_the_limits_of_this_machine_can_be_read():
    facts = resource_limits.collect()
    assert "limits.error" not in facts
    assert (resource_limits.allocatable_bytes() or 0) > 1 << 20
    assert facts["limits.cpu_cores"] > 0


@pytest.mark.parametrize(
    ("total", "warned"), [(65536, True), (64 * 2**20, True), (2**30, False), (None, False)]
)
def test_small_shared_memory_is_told_with_advice(total: int | None, warned: bool) -> None:
    text = resource_limits.small_shm({} if total is None else {"limits.shm_total_bytes": total})
    assert (text is not None and "--shm-size" in text) == warned


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        (v2_tree(job_memory_events="low 0\noom 2\noom_kill 3\n"), 3),
        (v2_tree(job_memory_events="oom_kill") | {"proc/vmstat": "oom_kill 9\n"}, 9),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n",
                "proc/self/mountinfo": V1_MOUNTS,
                "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 4\n",
            },
            4,
        ),
        ({"proc/vmstat": "nr_free_pages 5\noom_kill 7\n"}, 7),
        ({}, 0),
    ],
)
def test_processes_that_the_kernel_has_killed_for_memory(plant, files, kills):
    assert resource_limits.oom_kills(plant(files)) == kills


@pytest.mark.parametrize(
    ("version", "refusals"), [(1, 4), (2, 4), (None, 0)], ids=["v1", "v2", "none"]
)
def test_processes_that_control_groups_have_refused(plant, version, refusals):
    controller = {1: "pids", 2: ""}.get(version, "cpu")
    kind = {1: "cgroup cgroup rw,pids", 2: "cgroup2 cgroup2 rw"}.get(version, "tmpfs tmpfs rw")
    files = {
        "proc/self/cgroup": f"4:{controller}:/job\n",
        "proc/self/mountinfo": f"1 2 0:3 / /sys/fs/cgroup/pids rw - {kind}\n",
        "sys/fs/cgroup/pids/job/pids.events": "max 3\n",
        "sys/fs/cgroup/pids/pids.events": "max 1\n",
    }
    assert resource_limits.process_refusals(plant(files)) == refusals
