"""The page of a new run: recipes to choose from, then the form with its findings and its plan."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.contradictions import LintFinding
from engine.config.recipes import RECIPES
from engine.errors import Problem
from webapp.core.contexts.frame import Crumb
from webapp.core.permissions import Role, may_remove
from webapp.runs.contexts.forms.chosen import ChosenView
from webapp.runs.contexts.forms.differences import Difference
from webapp.runs.contexts.forms.form import FormSection
from webapp.runs.contexts.forms.plan import PlanView
from webapp.runs.contexts.tries import TriesView
from webapp.runs.selectors.recipes import saved_recipes


@dataclass(frozen=True, slots=True)
class RecipeChoice:
    """A recipe to start from."""

    name: str
    kind: str
    help: str
    current: bool
    can_remove: bool = False
    """Whether it is a saved recipe that the person may remove."""


@dataclass(frozen=True, slots=True)
class RecipeGroup:
    """Recipes of one kind of run, or those that people saved."""

    kind: str
    """Kind of run; empty for saved recipes."""
    choices: tuple[RecipeChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFormContext:
    """The page: choose a recipe, then its settings."""

    section: str
    crumbs: tuple[Crumb, ...]
    recipes: tuple[RecipeGroup, ...]
    recipe: str
    """Name of the chosen recipe; empty before the choice."""
    clone_of: int | None
    sections: tuple[FormSection, ...]
    others: tuple[FormSection, ...]
    """Sections behind the main ones, in the form of a recipe that has main settings."""
    short: str
    """Title of the form of a recipe with main settings; empty for other recipes."""
    rendered: str
    """Settings of a person and what followed, as JSON: the next request rebuilds the shown form from them."""
    findings: tuple[LintFinding, ...]
    """Errors first."""
    chosen: ChosenView | None
    """Trajectories that a fine-tuning run would train on; None for other kinds."""
    tries: TriesView | None
    """Tries of the chosen model; None where the policy is no model that can be tried."""
    plan: PlanView | None
    """None for kinds of run without a plan."""
    refused: tuple[Problem, ...]
    """Reasons for a refused run."""
    differences: tuple[Difference, ...]
    """Settings that differ, by what changed them last."""
    experiments: tuple[tuple[int, str], ...]
    experiment: int | None

    @property
    def num_different(self) -> int:
        """Return the number of settings that differ."""
        return sum(difference.count for difference in self.differences)


def recipe_groups(current: str, *, role: Role, user_id: int) -> tuple[RecipeGroup, ...]:
    """Return every recipe with a line about it, by kind of run; those that people saved come first."""
    groups: dict[str, list[RecipeChoice]] = {}
    for name, make in RECIPES.items():
        kind, text = make().kind, (make.__doc__ or "").strip().split("\n")[0]
        groups.setdefault(kind, []).append(RecipeChoice(name, kind, text, name == current))
    saved = tuple(
        RecipeChoice(
            recipe.name,
            recipe.kind,
            recipe.description.split("\n")[0]
            or f"{recipe.base} with other settings, from run {recipe.run_id}",
            recipe.name == current,
            may_remove(recipe.created_by_id, role, user_id),
        )
        for recipe in saved_recipes()
    )
    kinds = (RecipeGroup(kind, tuple(choices)) for kind, choices in groups.items())
    return (*([RecipeGroup("", saved)] if saved else []), *kinds)
