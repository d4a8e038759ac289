"""What lies between this process and the metal: a container, a hypervisor, or nothing that shows."""

from __future__ import annotations

from pathlib import Path

from .cpu import hypervisor_flag, parse_cpuinfo
from .sources import Facts, exists, read_line, read_text

# In this order: a pod may be run by docker, and podman writes a docker-like cgroup.
CONTAINER_FILES = (
    ("kubernetes", "var/run/secrets/kubernetes.io"),
    ("kubernetes", "run/secrets/kubernetes.io"),
    ("podman", "run/.containerenv"),
    ("apptainer", ".singularity.d"),
    ("docker", ".dockerenv"),
)
CONTAINER_CGROUPS = (("kubernetes", "kubepods"), ("podman", "libpod"), ("docker", "docker"), ("lxc", "/lxc"))
# The words of systemd-detect-virt, from the texts that hypervisors put into DMI.
DMI_NAMES = (
    ("amazon", "amazon ec2"),
    ("google", "google compute engine"),
    ("microsoft", "virtual machine"),
    ("vmware", "vmware"),
    ("oracle", "virtualbox"),
    ("xen", "xen"),
    ("kvm", "kvm"),
    ("kvm", "openstack"),
    ("qemu", "qemu"),
    ("apple", "apple virtualization"),
)


def container_of_cgroup(text: str) -> str | None:
    """The kind of container that the paths in /proc/self/cgroup name, if they do."""
    return next((kind for kind, word in CONTAINER_CGROUPS if word in text), None)


def virtualization_of_dmi(vendor: str, product: str) -> str | None:
    """The hypervisor that the machine's vendor and product name; a cloud's *.metal instance has none."""
    if product.endswith(".metal"):
        return None
    both = f"{vendor} {product}".lower()
    return next((kind for kind, word in DMI_NAMES if word in both), None)


def container(root: Path) -> str | None:
    """docker, podman, kubernetes, ..., chroot or none; None when an overlay root hints at one without a name."""
    cgroup = container_of_cgroup(read_text(root / "proc/self/cgroup") or "")
    if cgroup == "kubernetes":
        return cgroup
    marker = next((kind for kind, path in CONTAINER_FILES if exists(root / path)), None)
    named = read_line(root / "run/systemd/container")
    if marker or named or cgroup:
        return marker or named or cgroup
    if _is_chroot(root):
        return "chroot"
    return None if root_filesystem(root) == "overlay" else "none"


def root_filesystem(root: Path) -> str | None:
    """The type of the filesystem at /: an overlay is mostly a container, sometimes a diskless node."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split(" ")[4:5] == ["/"] and source:
            return source.split(" ")[0]
    return None


def virtualization(root: Path) -> str | None:
    """The hypervisor as systemd-detect-virt calls it, unknown when only the CPU flag shows, none on x86 without."""
    vendor, product = _dmi(root)
    found = virtualization_of_dmi(vendor or "", product or "") or read_line(root / "sys/hypervisor/type")
    if found or exists(root / "proc/device-tree/hypervisor/compatible"):
        return found or "kvm"
    flag = hypervisor_flag(parse_cpuinfo(read_text(root / "proc/cpuinfo") or ""))
    return {True: "unknown", False: "none", None: None}[flag]


def virtualization_facts(root: Path) -> Facts:
    """Container, hypervisor, and the machine's own name for itself (in a cloud the instance type)."""
    vendor, product = _dmi(root)
    return {
        "host.container": container(root),
        "host.root_filesystem": root_filesystem(root),
        "host.virtualization": virtualization(root),
        "host.machine_vendor": vendor,
        "host.machine_product": product,
    }


def _dmi(root: Path) -> tuple[str | None, str | None]:
    folder = root / "sys/class/dmi/id"
    return read_line(folder / "sys_vendor"), read_line(folder / "product_name")


def _is_chroot(root: Path) -> bool:
    """Whether / differs from the first process's; a user who may not look there is told no."""
    try:
        return not (root / ".").samefile(root / "proc/1/root")
    except OSError:
        return False
