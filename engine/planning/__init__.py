"""Plans of what a run needs and costs, made before it starts. Loads neither torch nor a model."""

from engine.planning.assumptions import Assumptions, parse_assumptions
from engine.planning.hardware import GPUS, Gpu, Hardware, parse_hardware
from engine.planning.plan import RunPlan, plan_recipe, plan_run
from engine.planning.text import render, to_json

__all__ = [
    "GPUS",
    "Assumptions",
    "Gpu",
    "Hardware",
    "RunPlan",
    "parse_assumptions",
    "parse_hardware",
    "plan_recipe",
    "plan_run",
    "render",
    "to_json",
]
