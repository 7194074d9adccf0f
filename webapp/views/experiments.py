"""Pages of experiments."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from webapp.contexts.run.experiments import build_experiment, build_experiment_list
from webapp.selectors.run import experiments as reads
from webapp.views.access import Person, viewer
from webapp.views.pages import page, params_of


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
