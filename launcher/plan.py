"""Profile + options + environment -> ServePlan: everything that `radiance serve` will do, as a value.

Plan, then act: `build` is pure (no network, no clock; of the disk it reads a draft vocabulary, if it is there), so `radiance
plan` shows on a laptop what a GPU machine would run, and a test compares plans instead of watching processes. supervise.py
is the one that acts.

Who wins: command line > environment > user's file > built-in profile (layers.py). Every time an environment variable beats
the profile, `notes` says so; `settled` knows where each value came from.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from launcher import arguments, cachedirs, nodes, servicelinks, smollm2
from launcher.errors import SettingsConflict, UsageProblem
from launcher.estimate import Estimate, estimate, gain_line, memory_lines
from launcher.fetch import Repository, repositories
from launcher.layers import Key, Layer
from launcher.options import Options
from launcher.overlay import MODES, Settled, files_of, settle_all
from launcher.profiles import Profile, warnings
from launcher.schema import OWN_VARIABLES
from launcher.secrets import FILES, Redactor, looks_secret
from radiance import settings
from radiance.errors import SettingsError
from radiance.settings import Mode, Require

#: vLLM reports usage to its authors unless told not to
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: inherited variables that would make vLLM's figures wrong
STALE = {
    "PROMETHEUS_MULTIPROC_DIR": "what an earlier vLLM left in that folder would be counted again; vLLM makes one when it needs it"
}


@dataclass(frozen=True)
class ServePlan:
    """`env` is what gets set on top of the inherited environment, `unset` what is taken out of it."""

    profile: str
    summary: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    #: inherited variables whose values are never shown
    secrets: tuple[str, ...]
    #: folders that must hold a checkpoint before vLLM starts
    model_folders: tuple[Path, ...]
    embedded: str | None
    #: what comes from the model hub
    repositories: tuple[Repository, ...]
    #: caches and temporary files, by the variable that moves them
    folders: Mapping[str, Path]
    #: where the private state folder is made; None = the system's temporary folder
    state_parent: Path | None
    options: Options
    mode: Mode
    require: Require
    rerank: int | None
    draft_vocab: Path | None
    #: what changes in `env` when supervision falls back to the stock head; None: unset
    fallback_env: Mapping[str, str | None]
    startup_budget_seconds: int
    #: draft tokens of a draft; None: the profile does not speculate
    depth: int | None
    #: on a headless node, where the launcher of its leader is
    leader: str | None
    #: pipeline parallel over several nodes: the drafter is on the last rank, so it may well be another node's
    drafter_elsewhere: bool
    acceptance_per_draft_min: float | None
    draft_head_latency_seconds_max: float | None
    #: decisions worth a line, and warnings
    notes: tuple[str, ...]
    #: the profile after all layers, and who said what
    settled: Settled
    #: memory and gain, from the facts the profile states
    estimate: Estimate

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """All that vLLM gets."""
        return _without(inherited, self.unset) | dict(self.env)


def build(source: Profile | Sequence[Layer], options: Options, environ: Mapping[str, str]) -> ServePlan:
    """Decide everything. Raises ProfileError (a file), SettingsConflict (environment) or UsageProblem (command line)."""
    try:
        user = settings.read(environ)
    except SettingsError as error:
        raise SettingsConflict(str(error)) from error
    notes = [_service_links(user.ignored)] if user.ignored else []
    links = servicelinks.found(environ)
    notes += [
        f"{name} is dropped: its value is a Kubernetes service link, no setting; {servicelinks.CURE} or rename the Service"
        for name in links
    ]
    unset = (*links, *sorted(STALE.keys() & environ.keys()))
    notes += [f"{name} is dropped: {STALE[name]}" for name in unset if name in STALE]

    passed = _without(environ, unset)
    settled = settle_all(files_of(source), user, passed, options.sets)
    profile, mode = settled.profile, MODES[settled.profile.fast_draft]
    notes += settled.notes
    made = profile.env | _plugin(profile, mode)
    taken = _taken_away(settled, passed, made)
    notes += [
        f"{name} of the environment is not passed to vLLM: {place} takes it away" for name, place in taken.items()
    ]
    unset, passed = (*unset, *taken), _without(passed, taken)
    asks_hub = tuple(repositories(profile))
    quiet = QUIET if asks_hub else QUIET | {"HF_HUB_OFFLINE": "1"}
    env = {name: passed.get(name) or value for name, value in quiet.items()} | made
    stock = {name: env.get(name) or passed.get(name) for name in (cachedirs.ROOT, cachedirs.INDUCTOR)}
    space = cachedirs.namespace(mode, profile.rerank, profile.draft_vocab, profile.shadow_sample or 0)
    env |= cachedirs.environment(space, passed | env)
    guess = estimate(profile)
    argv, more = arguments.build(
        profile,
        options.extra,
        _model(profile, environ),
        _drafter(profile, environ),
        options.host,
        options.port,
        options.drain_seconds,
    )
    spread = nodes.read(argv)
    if options.fallback_after_seconds is not None:
        _check_fallback(profile, mode, spread)
    return ServePlan(
        profile=profile.name,
        summary=profile.summary,
        argv=(options.vllm, "serve", *argv),
        env=MappingProxyType(dict(sorted(env.items()))),
        unset=unset,
        secrets=_secrets(_without(environ, unset), options),
        model_folders=_folders(profile, environ),
        embedded=profile.model.embedded,
        repositories=asks_hub,
        folders=MappingProxyType(cachedirs.places(passed | env)),
        state_parent=user.state_dir,
        options=options,
        mode=mode,
        require=profile.require,
        rerank=profile.rerank,
        draft_vocab=profile.draft_vocab,
        fallback_env=MappingProxyType({"RADIANCE_FAST_DRAFT": str(Mode.OFF), **stock}),
        startup_budget_seconds=profile.startup_budget_seconds,
        depth=profile.speculative.num_speculative_tokens if profile.speculative else None,
        leader=nodes.leader(spread, options.metrics_port),
        drafter_elsewhere=spread.count > 1 and profile.pipeline_parallel_size > 1,
        acceptance_per_draft_min=profile.expected.acceptance_per_draft_min,
        draft_head_latency_seconds_max=profile.expected.draft_head_latency_seconds_max,
        notes=(*notes, *more, *guess.warnings, *warnings(profile), *_gated(profile, environ)),
        settled=settled,
        estimate=guess,
    )


def _gated(profile: Profile, environ: Mapping[str, str]) -> list[str]:
    if environ.get("HF_TOKEN") or environ.get("HF_TOKEN_FILE"):
        return []
    gated = [source.id for source in (profile.model, profile.drafter) if source and source.gated and source.id]
    return [f"{name} is gated: set HF_TOKEN, unless HF_HOME has a token or the whole model" for name in gated]


def _without(environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def _taken_away(settled: Settled, passed: Mapping[str, str], made: Mapping[str, str]) -> dict[str, str]:
    """Inherited variables whose value a stronger layer took away -> where it did. vLLM would inherit them otherwise."""
    keys: dict[str, Key] = {name: (field,) for name, field in OWN_VARIABLES.items()}
    keys |= {str(key[1]): key for key in settled.merged.history if key[0] == "env" and len(key) > 1}
    found = {}
    for name, key in keys.items():
        given = settled.merged.history.get(key)
        if given and given[-1].value is None and passed.get(name) and name not in made:
            found[name] = given[-1].layer.place(key)
    return dict(sorted(found.items()))


def _plugin(profile: Profile, mode: Mode) -> dict[str, str]:
    """The plugin's settings; what is not given keeps the plugin's own default."""
    given = {
        "RADIANCE_FAST_DRAFT": mode,
        "RADIANCE_REQUIRE": profile.require,
        "RADIANCE_DRAFT_RERANK": profile.rerank,
        "RADIANCE_DRAFT_VOCAB": profile.draft_vocab,
        "RADIANCE_SHADOW_SAMPLE": profile.shadow_sample,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _check_fallback(profile: Profile, mode: Mode, spread: nodes.Nodes) -> None:
    """A fall-back that can never happen, or that a requirement forbids, is a mistake of whoever asked for it."""
    if spread.count > 1 or spread.headless or spread.address:
        raise UsageProblem(
            "--fallback-after-seconds starts this node's vLLM with its stock head, and the other nodes would wait for its 2-bit one; "
            "leave it out and change fast_draft of the profile, which all nodes read"
        )
    if profile.expected.acceptance_per_draft_min is None or mode is Mode.OFF:
        raise UsageProblem(
            f"--fallback-after-seconds needs fast_draft and expected.acceptance_per_draft_min; profile {profile.name!r} has "
            f"{'no such floor' if mode is not Mode.OFF else 'the draft head off'}; add it or leave the option out"
        )
    if profile.require in (Require.READY, Require.FAIL):
        raise UsageProblem(
            f"--fallback-after-seconds serves with the stock head, which require: {profile.require} of profile "
            f"{profile.name!r} forbids; leave one of them out"
        )


def _service_links(names: tuple[str, ...]) -> str:
    return (
        f"ignored, Kubernetes service links and not settings: {', '.join(names)}; {servicelinks.CURE} to be rid of them"
    )


def _model(profile: Profile, environ: Mapping[str, str]) -> str:
    model = profile.model
    if model.embedded:
        return str(smollm2.folder(environ))
    return model.id or str(model.path)


def _drafter(profile: Profile, environ: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Where the drafter lies and its revision; None if the model carries it."""
    drafter = profile.drafter
    if drafter is None:
        return None
    if drafter.same_as_model:
        return _model(profile, environ), profile.model.revision
    return drafter.id or str(drafter.path), drafter.revision


def _secrets(environ: Mapping[str, str], options: Options) -> tuple[str, ...]:
    """Names only; those that come from files are read at start."""
    names = {name for name, value in environ.items() if value and looks_secret(name)}
    names |= {target for name, target in FILES.items() if environ.get(name)}
    return tuple(sorted(names | ({"VLLM_API_KEY"} if options.api_key_file else set())))


def _folders(profile: Profile, environ: Mapping[str, str]) -> tuple[Path, ...]:
    paths = [profile.model.path, profile.drafter.path if profile.drafter else None]
    embedded = [smollm2.folder(environ)] if profile.model.embedded else []
    return tuple(dict.fromkeys([*embedded, *(path for path in paths if path is not None)]))


def to_json(plan: ServePlan, hide: Mapping[str, str]) -> str:
    value = {
        "profile": plan.profile,
        "argv": list(plan.argv),
        "env": dict(plan.env) | dict.fromkeys(plan.secrets, "(inherited, not shown)"),
        "unset": list(plan.unset),
        "folders": {name: str(path) for name, path in plan.folders.items()},
        "state_dir": f"made at start, private, in {plan.state_parent or 'the temporary folder'}",
        "api": f"http://{plan.options.host}:{plan.options.port}" if plan.leader is None else None,
        "leader": plan.leader,
        "metrics": f"http://{plan.options.metrics_host}:{plan.options.metrics_port}/metrics",
        "fast_draft": plan.mode.name.lower(),
        "require": str(plan.require),
        "startup_budget_seconds": plan.startup_budget_seconds,
        "repositories": [asdict(repository) for repository in plan.repositories],
        "estimate": asdict(plan.estimate),
        "notes": list(plan.notes),
    }
    return Redactor(hide)(json.dumps(value, indent=2))


def to_shell(plan: ServePlan, hide: Mapping[str, str]) -> str:
    """A command to paste: the same vLLM without the launcher around it (no exporter, no state folder, no readiness)."""
    parts = ["env", *(f"-u {name}" for name in plan.unset)]
    parts += [f"{name}={arguments.quote(value)}" for name, value in plan.env.items()]
    return Redactor(hide)(" \\\n  ".join([*parts, " ".join(map(arguments.quote, plan.argv))]))


def to_text(plan: ServePlan, hide: Mapping[str, str]) -> str:
    options = plan.options
    rows = [("profile", f"{plan.profile}: {plan.summary}"), ("command", " ".join(map(arguments.quote, plan.argv)))]
    rows += [("env", f"{name}={value}") for name, value in plan.env.items()]
    rows += [("env", f"{name} (inherited, not shown)") for name in plan.secrets]
    rows += [("unset", name) for name in plan.unset]
    rows += [
        *(("folder", f"{name} {path}") for name, path in plan.folders.items()),
        ("state", f"a private folder, made at start, in {plan.state_parent or 'the temporary folder'}"),
        *(("model", str(folder)) for folder in plan.model_folders),
        *(("hub", str(repository)) for repository in plan.repositories),
        ("api", f"http://{options.host}:{options.port}" if plan.leader is None else f"none, follows {plan.leader}"),
        ("metrics", f"http://{options.metrics_host}:{options.metrics_port}/metrics"),
        ("ready in", f"at most {plan.startup_budget_seconds} s, else exit 124"),
    ]
    if plan.estimate.memory:
        rows += [("memory", line) for line in memory_lines(plan.estimate.memory)]
    rows += [("gain", gain_line(gain)) for gain in plan.estimate.gains]
    rows += [("note", note) for note in plan.notes]
    return Redactor(hide)("\n".join(f"{name:<9} {value}" for name, value in rows))
