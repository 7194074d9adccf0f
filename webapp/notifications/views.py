"""Notifications page: list, form, test, removal."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from engine.errors import ConfigError, Problem
from webapp.accounts.gate import operator
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.core.pages import page, posted_of
from webapp.core.permissions import Person
from webapp.experiments.models import Experiment
from webapp.notifications import selectors as reads
from webapp.notifications.contexts import build_notifications
from webapp.notifications.models import Notification
from webapp.notifications.services import delivery, notifications

_TEMPLATE = "notifications/list.html"


@operator
@sensitive_post_parameters("address")
def notification_list(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the notifications, or create one and show the secret of a webhook once."""
    if request.method != "POST":
        return page(request, person, _TEMPLATE, build_notifications(person))
    posted, states = posted_of(request), tuple(request.POST.getlist("states"))
    try:
        _, secret = notifications.add(
            owner=person.user,
            kind=posted.get("kind", ""),
            address=posted.get("address", ""),
            experiment=_experiment(posted.get("experiment", "")),
            states=states,
            alerts=[code for code in posted.get("alerts", "").replace(",", " ").split() if code],
            actor=person.user,
        )
    except ConfigError as error:
        context = build_notifications(person, posted=posted, checked=states, refused=error.problems)
        return page(request, person, _TEMPLATE, context, status=422)
    if not secret:
        messages.success(request, "The notification was added.")
        return redirect("notification-list")
    return page(request, person, _TEMPLATE, build_notifications(person, secret=secret))


@operator
@require_POST
def notification_test(request: HttpRequest, person: Person, notification_id: int) -> HttpResponse:
    """Send a test message and render the result."""
    sent = delivery.send_test(notification=_found(person, notification_id), actor=person.user)
    return page(request, person, _TEMPLATE, build_notifications(person, tested=sent))


@operator
@require_POST
def notification_remove(request: HttpRequest, person: Person, notification_id: int) -> HttpResponseRedirect:
    """Remove a notification with its messages."""
    notifications.remove(notification=_found(person, notification_id), actor=person.user)
    messages.success(request, "The notification was removed.")
    return redirect("notification-list")


def _found(person: Person, notification_id: int) -> Notification:
    notification = reads.find(notification_id, person.role, person.user.pk)
    if notification is None:
        raise Http404(f"There is no notification {notification_id}.")
    return notification


def _experiment(text: str) -> Experiment | None:
    """Return the chosen experiment; None without a choice. Raises ConfigError."""
    if not text:
        return None
    found = Experiment.objects.filter(pk=whole(text, most=MOST_ID) or 0).first()
    if found is None:
        raise ConfigError(Problem("it was removed meanwhile", "experiment"))
    return found
