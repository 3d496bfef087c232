"""What would not fit: a process on its GPU, all processes in this machine's memory, the store on its disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from schemas.config import RunConfig
from workers.planning.parts import RolePlan, StorePlan


def too_large(config: RunConfig, roles: Sequence[RolePlan]) -> Iterator[str]:
    """Roles that a GPU does not hold."""
    for role in roles:
        if role.memory is None or not role.gpus:
            continue
        there = config.cluster.gpu_memory_gb * 1e9 * role.gpus
        device = role.memory.device
        if role.memory.device_bytes > there:
            largest = max(device, key=lambda part: device[part])
            yield (
                f"{role.name}: a process takes {sized(role.memory.device_bytes)} on its GPU, which has {sized(there)}; "
                f"most of it is {largest} ({sized(device[largest])}): {_REMEDIES[largest]}"
            )


_WIDER = "spread the model over more ranks"
_REMEDIES = {
    "weights": _WIDER,
    "gradients": _WIDER,
    "optimizer": _WIDER,
    "activations": "use smaller micro-batches, gradient_checkpointing, or a shorter max_total_sequence_length",
    "kv cache": "use a smaller generator.batch_size",
    "teacher heads": "use fewer teachers, or teacher_payload logits",
    "divergence": "use a smaller on_policy_distillation.full.chunk_size",
    "runtime": "name GPUs with more memory in cluster.gpu_memory_gb",
}


def too_full(config: RunConfig, roles: Sequence[RolePlan], store: StorePlan) -> Iterator[str]:
    """This machine's memory and disk, where it is the one that is planned for."""
    if config.cluster.num_nodes is not None:
        return
    host = {role.name: role.processes * role.memory.host_bytes for role in roles if role.memory is not None}
    needed = sum(host.values())
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        most = max(host, key=lambda name: host[name])
        yield (
            f"memory: all processes together may take {sized(needed)}, this machine has {sized(there)}; {most} takes "
            "most: use smaller batches, fewer ranks, or a cluster"
        )
    if "://" not in (config.store.url or ""):
        free = _free_disk()
        if store.total_bytes > free:
            yield (
                f"store: it may take {sized(store.total_bytes)}, {sized(free)} are free here; "
                "set store.retention, checkpointing.keep, or store.payload_retention"
            )


def _free_disk() -> int:
    there = os.statvfs(".")
    return there.f_bavail * there.f_frsize


def sized(size_bytes: float) -> str:
    """A size as people say it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes:.0f} B"
