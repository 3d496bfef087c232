"""The live display of a run, its lines in a pipe, and the table that closes it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from schemas.config import RunConfig
from workers.reports.overview import Overview
from workers.reports.report import Reporter
from workers.rundir import RunDir

#: Metric and heading of what a step shows.
SHOWN = (
    ("gap_mean", "gap"),
    ("reward_mean", "reward"),
    ("loss", "loss"),
    ("grad_norm", "grad norm"),
    ("is_oob_ratio", "gated"),
    ("staleness_mean", "age"),
    ("buffered_rows", "buffered"),
    ("tokens_per_s", "tokens/s"),
    ("generate_tokens_per_s", "generate/s"),
    ("teacher_tokens_per_s", "teacher/s"),
    ("train_tokens_per_s", "train/s"),
)
LINES = 12


class Progress(Reporter):
    """A Reporter on stderr: live on a terminal, a line a step elsewhere; the closing table goes to stdout."""

    def __init__(
        self, config: RunConfig, run_dir: RunDir, *, live: bool = True, console: Console | None = None
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.console = console or Console(stderr=True)
        self.steps: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=LINES)
        self.trained_steps = 0
        self.validations: dict[int, Mapping[str, float]] = {}
        self.overview: Overview | None = None
        self.started = time.monotonic()
        self.live = (
            Live(self, console=self.console, refresh_per_second=4, transient=True)
            if live and self.console.is_terminal
            else None
        )

    def __enter__(self) -> Progress:
        if self.live:
            self.live.start()
        else:
            self.console.print("starting workers …", highlight=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()
        if kind is None:
            self._close()

    # -- Reporter -------------------------------------------------------------------------------------

    def watch(self, overview: Overview) -> None:
        self.overview = overview

    def resumed(self, validations: Mapping[int, Mapping[str, float]]) -> None:
        self.validations.update(validations)

    def news(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def waits_long(self, what: str, seconds: float, workers: str) -> None:
        if not self.live:
            said = f"waiting for {what} since {seconds:.0f} s: {workers}"
            self.console.print(said, highlight=False, markup=False, soft_wrap=True)

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append((step, metrics))
        self.trained_steps += 1
        if not self.live and (step % 10 == 0 or step == 1):
            numbers = "  ".join(f"{heading} {_number(metrics.get(name))}" for name, heading in SHOWN)
            self.console.print(
                f"step {step}/{self.config.grpo.max_num_steps}  {numbers}", highlight=False, soft_wrap=True
            )

    def validated(self, version: int, metrics: Mapping[str, float]) -> None:
        self.validations[version] = metrics
        if not self.live:
            self.console.print(f"validation of version {version}  {_validation(metrics)}", highlight=False)

    # -- what one sees --------------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        done, total = (self.steps[-1][0] if self.steps else 0), self.config.grpo.max_num_steps
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self.config.run.name, style="bold"),
            Text(f"step {done}/{total}"),
            ProgressBar(total=total, completed=done, width=30),
            Text(f"{time.monotonic() - self.started:.0f} s", style="dim"),
        )
        now: list[RenderableType] = [] if self.overview is None else [_waits(self.overview), _workers(self.overview)]
        return Group(head, self._accuracies(), *now, self._latest_steps())

    def _latest_steps(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("step", *(heading for _, heading in SHOWN)):
            table.add_column(heading, justify="right")
        for step, metrics in self.steps:
            table.add_row(str(step), *(_number(metrics.get(name)) for name, _ in SHOWN))
        return table

    def _accuracies(self) -> RenderableType:
        if not self.validations:
            return Text("")
        version, metrics = max(self.validations.items())
        return Text(f"held out, version {version}:  {_validation(metrics)}", style="green")

    def _close(self) -> None:
        """Before and after, and where to look next."""
        out = Console()
        if self.validations:
            out.print(_before_after(min(self.validations.items()), max(self.validations.items())))
        else:
            out.print(
                f"{self.trained_steps} steps trained" if self.steps else "complete already: nothing was left to train"
            )
        run = self.run_dir.path
        out.print(Text("\nTry next:", style="bold"))
        for command in (
            f'opd sql {run} "select agent, avg(gap) from tokens where trained group by agent"',
            f"opd replay {run} --step 1 --set on_policy_distillation.proximal_teacher_alpha=0.5",
            f"opd ui {run}",
        ):
            out.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def _waits(now: Overview) -> Text:
    """What the job waits for, what waits for a step, and what holds admission back."""
    held = f"; admission held by {now.held}" if now.held else ""
    said = f"waits for {now.waits_for}, {now.waits_s:.0f} s; {now.open_rows:,} rows are in no step yet{held}"
    return Text(said, style="dim")


def _workers(now: Overview) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, status in now.statuses().items():
        table.add_row(Text(name, style="dim"), Text(status.doing), Text(f"{status.seconds:.0f} s", style="dim"))
    return table


def _before_after(first: tuple[int, Mapping[str, float]], last: tuple[int, Mapping[str, float]]) -> Table:
    table = Table(title="Held-out prompts, greedy", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column(f"version {first[0]}", justify="right")
    table.add_column(f"version {last[0]}", justify="right")
    for name in last[1]:
        label = name.replace("accuracy/", "exact match, ").replace("exact_kl", "exact KL to the teacher, nats a token")
        table.add_row(
            "exact match, all" if name == "accuracy" else label, _number(first[1].get(name)), _number(last[1][name])
        )
    return table


def _validation(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name.removeprefix('accuracy/')} {value:.3f}" for name, value in metrics.items())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) < 1e-2 and value else f"{value:.3f}"
