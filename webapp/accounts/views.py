"""Sign-in page, and a person's own pages: sessions, API tokens, password."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.views import LoginView
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from webapp.accounts.contexts import build_account, build_password, build_tokens
from webapp.accounts.gate import viewer
from webapp.accounts.middleware import change_password
from webapp.accounts.selectors.sign_ins import get_sign_in
from webapp.accounts.selectors.tokens import get_token
from webapp.accounts.services import accounts, sign_ins
from webapp.core.contexts.numbers import whole
from webapp.core.pages import page, posted_of
from webapp.core.permissions import Person, Role


class SignInView(LoginView):
    """Sign-in page, which reports when an account is locked for an address."""

    template_name = "accounts/login.html"
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Sign the user in, with an audit entry."""
        sign_ins.record(user=form.get_user(), address=self.request.META.get("REMOTE_ADDR") or None)
        return super().form_valid(form)

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


@viewer
@never_cache
def tokens(request: HttpRequest, person: Person) -> HttpResponse:
    """Render a person's API tokens; a posted form creates a token, shown in this response only."""
    posted, error, created = posted_of(request), "", ""
    if request.method == "POST":
        try:
            created = accounts.create_token(
                user=person.user,
                name=posted.get("name", ""),
                scope=_scope(posted.get("scope", "")),
                days=_days(posted.get("days", "")),
                actor=person.user,
            )
        except accounts.AccountError as refusal:
            error = str(refusal)
    context = build_tokens(
        person.user, person.role, posted=posted if error else None, error=error, created=created
    )
    return page(request, person, "accounts/tokens.html", context, status=422 if error else 200)


def _scope(text: str) -> Role:
    if text not in list(Role):
        raise accounts.AccountError(f"a token's scope is one of {', '.join(Role)}, not {text[:40]!r}")
    return Role(text)


def _days(text: str) -> int:
    days = whole(text)
    if days is None:
        raise accounts.AccountError(f"a token is valid for a whole number of days, not {text[:40]!r}")
    return days


@viewer
@require_POST
def token_revoke(request: HttpRequest, person: Person, token_id: int) -> HttpResponseRedirect:
    """Revoke one API token of the person."""
    token = get_token(person.user, token_id)
    if token is None:
        raise Http404("There is no such token of yours.")
    accounts.revoke_token(token=token, actor=person.user)
    messages.success(request, f"The token {token.name} was revoked.")
    return redirect("tokens")


@viewer
@sensitive_post_parameters()
def password(request: HttpRequest, person: Person) -> HttpResponse:
    """Render the form that changes a person's password; a valid one ends API tokens and other sessions."""
    form = PasswordChangeForm(person.user, request.POST if request.method == "POST" else None)
    if not form.is_valid():
        status = 422 if form.is_bound else 200
        return page(request, person, "accounts/password.html", build_password(form), status=status)
    change_password(request, user=person.user, password=form.cleaned_data["new_password1"])
    messages.success(request, "The password was changed. Your API tokens and other sessions have ended.")
    return redirect("account")
