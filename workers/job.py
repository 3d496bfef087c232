"""A job: a recipe, its run directory, the store, an executor with its roles, and the controller over them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dataplane import DataPlane, open_plane
from schemas.config import RunConfig
from schemas.config.resolved import resolved_text, save_resolved, versions, without_store
from schemas.errors import InputError
from stages.checkers import find_checker
from stages.routing import TeacherConfig, resolve_reference_aliases, teacher_configs, teacher_configs_by_index
from workers.control.controller import Controller
from workers.control.validation import Validation
from workers.control.window import Window
from workers.data import PromptSet, Route, load_prompts
from workers.executors import Executor, RoleSpec
from workers.partitions import create_partitions, store_vocabulary
from workers.reports.report import Reporter
from workers.roles.generator import GeneratorRole
from workers.roles.teacher import TeacherRole
from workers.roles.trainer import TrainerRole
from workers.rundir import RECIPE, RunDir
from workers.teachers.index import assert_teachers_are_served, record_teachers
from workers.teachers.lengths import refuse_longer_prompts
from workers.teachers.payload import assert_payload_fits
from workers.teachers.resources import check_teachers, teacher_engine
from workers.tokenizer import HFTokenizer, refuse_other_vocabulary


@dataclass
class Inputs:
    """What a run needs from outside, read and checked before anything heavy starts."""

    train: PromptSet
    validation: PromptSet
    tokenizer: HFTokenizer


def read_inputs(config: RunConfig) -> Inputs:
    """Prompts, tokenizers and routing. Raises InputError for whatever could not work later."""
    train = load_prompts(config.data.train, "data.train")
    held_out = load_prompts(config.data.validation, "data.validation")
    for source in (*config.data.train, *config.data.validation):
        find_checker(source.checker)
    route = routing(config)
    train, held_out = train.routed(route), held_out.routed(route)
    _check_checkpoints(config)
    check_teachers(config)
    tokenizer = HFTokenizer(config.policy.tokenizer or config.policy.model)
    for teacher in teacher_configs(config.on_policy_distillation):
        refuse_other_vocabulary(tokenizer, HFTokenizer(teacher.model_name), teacher.alias)
    refuse_longer_prompts(config, train, tokenizer)
    return Inputs(train, held_out, tokenizer)


def routing(config: RunConfig) -> Route:
    """Agent to teacher alias; None for every agent when nothing is distilled."""
    opd = config.on_policy_distillation
    if not opd.enabled:
        return lambda agent: None

    @cache
    def route(agent: str) -> str:
        [alias] = resolve_reference_aliases(
            [agent], opd.teacher_model_by_agent_name, opd.default_teacher_alias, opd.strict_agent_name_match
        )
        return alias

    return route


def _check_checkpoints(config: RunConfig) -> None:
    needed = {"policy.model": config.policy.model} | {
        f"teacher {teacher.alias!r}": teacher.model_name for teacher in teacher_configs(config.on_policy_distillation)
    }
    for what, path in needed.items():
        if not (Path(path) / "config.json").is_file():
            hint = "; `opd build-proxy runs/proxy` makes the quickstart's" if "proxy" in Path(path).parts else ""
            raise InputError(f"{what}: no checkpoint at {path!r} (no config.json there){hint}")
        for file in sorted(Path(path).glob("*.safetensors")):
            try:
                safe_open(file, framework="pt").__exit__(None, None, None)
            except (SafetensorError, OSError) as error:
                raise InputError(f"{what}: {file} is cut or damaged ({error}); copy the checkpoint again") from None


def run_job(
    config: RunConfig,
    inputs: Inputs,
    run_dir: RunDir,
    executor: Executor,
    *,
    resume: bool = False,
    report: Reporter | None = None,
) -> None:
    """Run *config* to its last step. Raises JobFailed; what was finished is stored and can be resumed."""
    run_dir.check(resume=resume)
    with opened_job(config, inputs, run_dir, executor, report) as controller:
        if resume:
            controller.resume()
        teachers = teacher_configs_by_index(teacher_configs(config.on_policy_distillation))
        controller.plane.event(
            "run_started", step=controller.trained, teachers=", ".join(t.model_name for t in teachers), **versions()
        )
        controller.run()


@contextmanager
def opened_job(
    config: RunConfig, inputs: Inputs, run_dir: RunDir, executor: Executor, report: Reporter | None = None
) -> Iterator[Controller]:
    """The controller of *config*, its store open and its roles hosted."""
    run_dir.create()
    with ExitStack() as stack:
        plane = stack.enter_context(
            open_plane(config.store.url or str(run_dir.plane), durability=config.store.durability)
        )
        stack.callback(executor.stop)
        save_resolved(config, run_dir.config)
        plane.record_fact(RECIPE, without_store(resolved_text(config)))
        inputs.tokenizer.save(run_dir.tokenizer)
        vocabulary = len(inputs.tokenizer.vocabulary)
        assert_payload_fits(config, vocabulary, run_dir.path)
        create_partitions(plane, config, vocabulary)
        assert_teachers_are_served(plane, config)
        store_vocabulary(plane, inputs.tokenizer.fingerprint, inputs.tokenizer.vocabulary)
        executor.start(plane, roles(config, run_dir, record_teachers(plane, config)))
        gc.freeze()  # what is there by now stays: the collector need not walk it again and again
        stack.callback(gc.unfreeze)
        yield _controller(config, inputs, run_dir, plane, executor, report or Reporter())


def roles(config: RunConfig, run_dir: RunDir, checkpoints: Sequence[str]) -> dict[str, RoleSpec]:
    """What has to be hosted, by name, and what it needs. *checkpoints* is what a ``teacher_index`` counts."""
    replicas = config.generator.replicas
    names = ["generator"] if replicas == 1 else [f"generator:{index}" for index in range(replicas)]
    generators = {
        name: RoleSpec(
            partial(GeneratorRole, config=config, name=name),
            gpus=config.generator.gpus,
            python=config.generator.python,
        )
        for name in names
    }
    teachers = {
        f"teacher:{teacher.alias}": _teacher(config, teacher, checkpoints)
        for teacher in teacher_configs(config.on_policy_distillation)
    }
    build = partial(TrainerRole, config=config, run_dir=run_dir, checkpoints=checkpoints)
    trainer = RoleSpec(build, gpus=config.trainer.gpus, stateful=True, ranks=config.trainer.ranks)
    return {**generators, **teachers, "trainer": trainer}


def _teacher(config: RunConfig, teacher: TeacherConfig, checkpoints: Sequence[str]) -> RoleSpec:
    how = teacher_engine(config, teacher)
    build = partial(TeacherRole, config=config, teacher=teacher, checkpoints=checkpoints)
    return RoleSpec(build, gpus=how.gpus, ranks=how.ranks, python=how.python, bundles=how.bundles)


def _controller(
    config: RunConfig, inputs: Inputs, run_dir: RunDir, plane: DataPlane, executor: Executor, report: Reporter
) -> Controller:
    needed = ("teacher_logprobs",) if config.on_policy_distillation.enabled else ("input_ids",)
    return Controller(
        config,
        plane,
        executor,
        run_dir,
        prompts=inputs.train.table,
        window=Window(plane, config, needed),
        validation=Validation(config, inputs.validation.table, len(inputs.tokenizer.vocabulary)),
        report=report,
    )
