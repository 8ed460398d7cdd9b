"""Compiler, Triton, vLLM, the plugin in it, and an environment that means what it says."""

from __future__ import annotations

from importlib import metadata

from packaging.version import InvalidVersion, Version

from launcher import servicelinks
from launcher.checks.verdict import Findings, fail, fail_if, ok, warn
from launcher.plan import ServePlan
from launcher.profiles import Profile
from launcher.sections import Kind
from launcher.surroundings import Surroundings
from radiance import settings
from radiance.errors import SettingsError
from radiance.settings import Mode


def compiler(around: Surroundings, plan: ServePlan | None) -> Findings:
    del plan
    if around.compiler:
        yield ok(f"C compiler {around.compiler}")
    else:
        yield fail(
            "no C compiler: Triton compiles a launcher for every kernel", "install gcc and libc's headers, or set CC"
        )


def triton(around: Surroundings, plan: ServePlan | None) -> Findings:
    version, problem = around.triton
    needed = bool(around.machine.devices) or (
        plan is not None and Kind.CPU not in plan.settled.profile.accelerator.kinds
    )
    if version:
        yield ok(f"Triton {version}")
    elif problem or needed:
        yield fail_if(needed)(
            f"Triton cannot be used: {problem or 'not installed'}", "install the triton that torch asks for"
        )


def plugin(around: Surroundings, plan: ServePlan | None) -> Findings:
    wanted = plan is None or plan.mode is not Mode.OFF
    allowed = around.environ.get("VLLM_PLUGINS")
    if "radiance" not in around.plugins:
        yield fail_if(wanted)(
            "vLLM will not find the plugin: no entry point radiance in vllm.general_plugins",
            "install radiance-vllm into the Python environment that vLLM runs in",
        )
    elif allowed is not None and "radiance" not in allowed.split(","):
        yield fail_if(wanted)(f"VLLM_PLUGINS={allowed} leaves the plugin out", "add radiance to it or unset it")
    else:
        yield ok("vLLM will load the plugin")


def installed() -> str:
    """Version of the vLLM beside this Python, empty if there is none."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return ""


def out_of_range(version: str, profile: Profile) -> str:
    """Why this vLLM is not for the profile; empty when it is, or is no release that could be compared."""
    try:
        release = Version(Version(version).base_version)
    except InvalidVersion:
        return ""
    low, high = profile.min_vllm, profile.max_vllm
    if release < Version(low) or (high and release > Version(high)):
        return f"vLLM {version}; the profile wants {low} to {high or 'the newest'}"
    return ""


def vllm(around: Surroundings, plan: ServePlan | None) -> Findings:
    if not around.vllm:
        yield fail("no vLLM beside this Python", "install it: pip install 'radiance-vllm[vllm]'")
    elif plan and (problem := out_of_range(around.vllm, plan.settled.profile)):
        yield fail(problem, "install such a release")
    else:
        yield ok(f"vLLM {around.vllm}")


def places(around: Surroundings, plan: ServePlan | None) -> Findings:
    if not around.vllm:
        return
    wanted = plan is None or plan.mode is not Mode.OFF
    for line in around.seams:
        yield fail_if(wanted)(
            f"this vLLM lacks a place the plugin needs: {line}", "use a release between 0.26 and 0.33"
        )
    if not around.seams:
        yield ok("this vLLM has every place the plugin needs")


def environment(around: Surroundings, plan: ServePlan | None) -> Findings:
    del plan
    try:
        settings.read(around.environ)
    except SettingsError as error:
        yield fail(str(error), "correct it or unset it: `serve` ends with 78")
    names = servicelinks.found(around.environ)
    if names:
        yield warn(
            f"Kubernetes service links that vLLM would take for settings: {', '.join(names)}; `serve` takes them out",
            f"{servicelinks.CURE} in the pod, or rename the Service",
        )
    if around.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        yield warn(
            "PROMETHEUS_MULTIPROC_DIR is set: it changes vLLM's own metrics", "unset it; Radiance does not need it"
        )


def clock(around: Surroundings, plan: ServePlan | None) -> Findings:
    del plan
    if around.now < 1767225600:
        yield fail("the clock is before 2026: every certificate of the hub will look invalid", "set the clock")
