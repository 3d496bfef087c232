"""Replay: stored columns through a stage again, and whether the same comes out.

with replay("runs/quickstart", step=3) as again:
    print(again.run("baseline").verdict)
    print(again.run("baseline", overrides={"on_policy_distillation.proximal_teacher_alpha": 0.5}).change)
"""

from workers.replay.report import Report, StageReport
from workers.replay.session import Replay, replay

__all__ = ["Replay", "Report", "StageReport", "replay"]
