"""Sign-in page, and the account page with a person's sessions."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from webapp.contexts.account import build_account
from webapp.selectors.access.sign_ins import get_sign_in
from webapp.services.access import sign_ins
from webapp.views.access import Person, viewer
from webapp.views.pages import page


class SignInView(LoginView):
    """Sign-in page, which reports when an account is locked for an address."""

    template_name = "accounts/login.html"
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Render the form again, or the page that reports the lock."""
        if not getattr(self.request, "axes_locked_out", False):
            return super().form_invalid(form)
        wait = settings.AXES_COOLOFF_TIME
        minutes = int(wait.total_seconds() // 60)
        context = {"minutes": minutes, "attempts": settings.AXES_FAILURE_LIMIT}
        response = render(self.request, "accounts/locked.html", context, status=429)
        response["Retry-After"] = str(60 * minutes)
        return response


@viewer
def account(request: HttpRequest, person: Person) -> HttpResponse:
    """Render a person's sessions."""
    context = build_account(person.user, request.session.session_key)
    return page(request, person, "accounts/detail.html", context)


@viewer
@require_POST
def session_end(request: HttpRequest, person: Person, sign_in_id: int) -> HttpResponseRedirect:
    """End one session of the person."""
    sign_in = get_sign_in(person.user, sign_in_id)
    if sign_in is None:
        raise Http404("There is no such session of yours.")
    sign_ins.end(sign_in=sign_in, actor=person.user)
    if sign_in.session_id == request.session.session_key:
        logout(request)
        return redirect("login")
    messages.success(request, "The session was signed out.")
    return redirect("account")


@viewer
@require_POST
def session_end_all(request: HttpRequest, person: Person) -> HttpResponseRedirect:
    """End every session of the person, including the current one."""
    sign_ins.end_all(user=person.user, actor=person.user)
    logout(request)
    return redirect("login")
