"""Short runs of the example's recipe with its roles in threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import transferqueue as tq
from controller.checkpoints import CheckpointFolder
from controller.driver import PpoDriver
from examples.tiny.recipe import Recipe, role_factories
from workers import LocalWorkerGroup
from workers.role_groups import RoleGroups

if TYPE_CHECKING:
    from pathlib import Path

    from controller.driver_config import DriverConfig
    from controller.step_report import StepReport


def small_recipe(**changes: Any) -> Recipe:
    """Learns nothing in a few steps, and computes everything."""
    settings = {
        "task_options": {"digits": 1, "reversed_answer": True, "partial_credit": 0.5},
        "batch_rows": 32,
        "minibatch_rows": 16,
        "held_out_problems": 8,
        "width": 16,
    }
    return Recipe(**{**settings, **changes})


def save_random_policy(recipe: Recipe, path: Path) -> None:
    torch.manual_seed(recipe.seed)
    torch.save(recipe.make_policy().state_dict(), path)


def run(
    recipe: Recipe,
    config: DriverConfig,
    folder: Path,
    *,
    resume: bool = False,
    stop_after: int | None = None,
) -> list[StepReport]:
    """Fresh service, fresh roles; checkpoints in ``folder``. ``stop_after``: leave it there."""
    weights = folder / "weights.pt"
    if not weights.exists():
        save_random_policy(recipe, weights)
    factories = role_factories(recipe, weights, num_rollouts=2)
    reports: list[StepReport] = []
    with (
        tq.serve(shards=2, budget_bytes=64 << 20) as service,
        tq.connect(service.address) as client,
        RoleGroups(factories, lambda _, w: LocalWorkerGroup(w, 1, service=service)) as roles,
        PpoDriver(
            client,
            roles,
            recipe.prompts(),
            recipe.settings.dataflow(),
            config,
            checkpoints=CheckpointFolder(folder / "checkpoints"),
        ) as driver,
    ):
        for report in driver.run(resume=resume):
            reports.append(report)
            if report.step == stop_after:
                break
    return reports


def curves(reports: list[StepReport]) -> list[tuple[Any, ...]]:
    """What was learned, to the last bit."""
    return [(r.step, r.reward, r.held_out_accuracy, dict(r.metrics)) for r in reports]
