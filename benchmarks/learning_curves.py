"""Runs the quickstart and its variants for real and draws how they learn: ``python -m benchmarks.learning_curves``.

Each recipe runs inline, with its own seed, into ``runs/curves/``; what is drawn comes from the stores afterwards. A
recipe that does not learn (below the quickstart's own promise) fails the whole.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dataplane import open_plane

RECIPES = {
    "quickstart": "sampled tokens",
    "quickstart_proximal": "proximal teacher, α = 0.5",
    "quickstart_full_vocabulary": "full vocabulary",
    "quickstart_orm": "with outcome rewards",
}
RUNS, PICTURE = Path("runs/curves"), Path("docs/curves.png")

#: What is drawn: (metric, title, logarithmic).
PANELS = (
    ("exact_kl", "exact KL to the teacher, held out (nats a token)", True),
    ("accuracy", "exact match, held out, greedy", False),
    ("gap_mean", "mean gap of the step's tokens (nats)", False),
    ("grad_norm", "gradient norm before clipping", True),
)

#: Metrics of held-out prompts: at version 0, every period and the last step.
VALIDATED = ("exact_kl", "accuracy")

#: Accuracy and exact KL at the last step that every recipe must reach.
ACCURACY, EXACT_KL = 0.9, 0.2


def run(recipe: str) -> Path:
    """The run directory of a fresh run."""
    directory = RUNS / recipe
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "workers.cli.app", "run", recipe, "--executor", "inline"]
    subprocess.run([*command, "--run-dir", str(directory)], check=True)
    return directory


def series(directory: Path, metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a metric: a point a step, or a validation where it comes from those."""
    with open_plane(str(directory / "plane"), mode="r") as plane:
        if metric in VALIDATED:
            events = plane.sql("select version as step, detail from events where kind = 'validated' order by seq")
            points = [(row["step"], json.loads(row["detail"]).get(metric)) for row in events.to_pylist()]
        else:
            points = [tuple(row.values()) for row in plane.sql(f"select step, {metric} from steps").to_pylist()]
    kept = sorted((step, value) for step, value in points if value is not None)
    return [step for step, _ in kept], [value for _, value in kept]


def draw(directories: dict[str, Path]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for axis, (metric, title, logarithmic) in zip(axes.flat, PANELS, strict=True):
        for recipe, directory in directories.items():
            steps, values = series(directory, metric)
            axis.plot(steps, values, marker="o" if len(steps) < 10 else None, markersize=4, label=RECIPES[recipe])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.set_yscale("log" if logarithmic else "linear")
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=8)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def main() -> None:
    directories = {recipe: run(recipe) for recipe in RECIPES}
    draw(directories)
    print(f"{'recipe':<28}{'accuracy':>10}{'exact KL':>10}")
    slow = []
    for recipe, directory in directories.items():
        accuracy, exact_kl = (series(directory, metric)[1][-1] for metric in ("accuracy", "exact_kl"))
        print(f"{recipe:<28}{accuracy:>10.3f}{exact_kl:>10.3f}")
        slow += [recipe] if accuracy < ACCURACY or exact_kl > EXACT_KL else []
    if slow:
        sys.exit(f"did not learn: {', '.join(slow)} (expected accuracy >= {ACCURACY}, exact KL <= {EXACT_KL})")


if __name__ == "__main__":
    main()
