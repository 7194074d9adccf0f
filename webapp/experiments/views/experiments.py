"""Pages of experiments."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from webapp.accounts.gate import viewer
from webapp.core.pages import page, params_of
from webapp.core.permissions import Person
from webapp.experiments import selectors as reads
from webapp.experiments.contexts.experiments import build_experiment, build_experiment_list


@viewer
def experiment_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the list of experiments."""
    return page(request, person, "experiments/list.html", build_experiment_list())


@viewer
def experiment_detail(request: HttpRequest, person: Person, experiment_id: int) -> HttpResponse:
    """Render an experiment with a comparison of its runs."""
    experiment = reads.get_experiment(experiment_id)
    if experiment is None:
        raise Http404(f"There is no experiment {experiment_id}.")
    context = build_experiment(experiment, params_of(request), can_operate=person.can_operate)
    return page(request, person, "experiments/detail.html", context)
