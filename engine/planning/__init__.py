"""Plans of what a run needs and costs, made before it starts. Loads neither torch nor a model."""

from engine.planning.assumptions import Assumptions, Basis, gather_assumptions, parse_assumptions
from engine.planning.hardware import GPUS, Gpu, Hardware, parse_hardware
from engine.planning.plan import plan_configured, plan_run
from engine.planning.run_plan import RunPlan
from engine.planning.text import render, to_json

__all__ = [
    "GPUS",
    "Assumptions",
    "Basis",
    "Gpu",
    "Hardware",
    "RunPlan",
    "gather_assumptions",
    "parse_assumptions",
    "parse_hardware",
    "plan_configured",
    "plan_run",
    "render",
    "to_json",
]
