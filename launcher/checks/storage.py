"""Shared memory, folders, disk, and the hub that fills them."""

from __future__ import annotations

from launcher.checks.verdict import Findings, fail, ok, warn
from launcher.estimate import GIB
from launcher.plan import ServePlan
from launcher.surroundings import Surroundings


def shared_memory(around: Surroundings, plan: ServePlan | None) -> Findings:
    ranks = plan.settled.profile.world_size if plan else 1
    need = ranks * GIB if ranks > 1 else 64 << 20
    have = around.shm or 0
    text = f"/dev/shm has {have / GIB:.2f} GiB, {ranks} rank{('s' if ranks > 1 else '')} want{('' if ranks > 1 else 's')} {need / GIB:.2f}"
    if have < need:
        size = max(1, ranks)
        yield fail(
            text,
            f"docker run --shm-size={size}g (or --ipc=host); Kubernetes: an emptyDir with medium Memory and sizeLimit {size}Gi at /dev/shm",
        )
    else:
        yield ok(text)


def caches(around: Surroundings, plan: ServePlan | None) -> Findings:
    whole = plan is not None and len(around.cached) == len(plan.repositories)
    for folder in around.folders:
        where = f"{folder.name} ({folder.path})"
        if not folder.problem:
            yield ok(f"{where} can be written, {folder.free / GIB:.0f} GiB free")
        elif folder.name == "HF_HOME" and whole:
            yield warn(
                f"{where} is read-only; all repositories are whole",
                "set HF_HUB_OFFLINE=1, so that nobody tries to write there",
            )
        else:
            yield fail(
                f"{where} cannot be written by uid {around.uid}: {folder.problem}",
                f"mount a writable volume there or set {folder.name}",
            )


def disk(around: Surroundings, plan: ServePlan | None) -> Findings:
    facts = plan.settled.profile.architecture if plan else None
    if plan is None or facts is None or len(around.cached) == len(plan.repositories):
        return
    need = facts.weight_gib + facts.drafter_gib
    (home,) = [folder for folder in around.folders if folder.name == "HF_HOME"]
    free = home.free / GIB
    if free < need:
        yield fail(
            f"{home.path} has {free:.0f} GiB free, the profile fetches about {need:.0f}",
            "make room or set HF_HOME to a larger volume",
        )
    else:
        yield ok(f"about {need:.0f} GiB to fetch, {free:.0f} GiB free")


def hub(around: Surroundings, plan: ServePlan | None) -> Findings:
    if plan is None:
        return
    for name in around.cached:
        yield ok(f"{name} is whole in the cache")
    gated = {s.id for s in (plan.settled.profile.model, plan.settled.profile.drafter) if s is not None and s.gated}
    for answer in around.hub:
        name = str(answer.repository)
        if answer.status == 0:
            yield fail(
                f"the hub does not answer for {name}: {answer.text}",
                "set HF_ENDPOINT or a proxy, or fetch elsewhere into this HF_HOME",
            )
        elif answer.status in (401, 403):
            terms = "accept its terms and " if answer.repository.id in gated or answer.text == "GatedRepo" else ""
            yield fail(f"{name}: refused ({answer.status})", f"{terms}set HF_TOKEN to a token that may read it")
        elif answer.status >= 500 or answer.status == 429:
            yield warn(f"{name}: the hub answers {answer.status}", "try again later")
        elif answer.status == 404:
            yield fail(f"{name}: there is no such repository or revision", "correct the profile")
        else:
            yield ok(f"{name} can be fetched")
    asked = {answer.repository.id for answer in around.hub} | set(around.cached)
    for repository in plan.repositories:
        if repository.id not in asked:
            yield fail(
                f"{repository} is not in the cache, and nobody may ask the hub",
                "radiance fetch, where the hub can be reached",
            )
