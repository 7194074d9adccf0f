"""Django settings, from the environment and the data folder.

``DATABASE_URL`` and ``REDIS_URL`` name servers; without them the embedded servers of the data folder
are used, on the ports where ``trainyard up`` last started them. ``TRAINYARD_HOME`` is the data folder,
``TRAINYARD_ALLOWED_HOSTS`` a comma-separated list of host names beside the loopback ones.
``TRAINYARD_PUBLIC_URL`` is the public address of the site: with https, cookies are ``Secure`` and HSTS is
sent to browsers. A proxy in front sets ``X-Forwarded-Proto``, which is trusted with
``TRAINYARD_TRUST_PROXY=1`` only, and its address goes into uvicorn's ``FORWARDED_ALLOW_IPS``.
``TRAINYARD_RUNS_AT_ONCE`` is the number of local runs at once on one machine (default: half its processors,
at least two), ``TRAINYARD_RUNS_PER_PERSON`` that of one person on all machines (0: any); others are queued.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from webapp.supervisor.home import INSTALLED, PROJECT, Ports, data_folder, load_ports, load_secrets

BASE_DIR = PROJECT
_ASSETS = BASE_DIR / "webapp" if INSTALLED else BASE_DIR
TRAINYARD_HOME = data_folder()
_SECRETS = load_secrets(TRAINYARD_HOME)
_PORTS = load_ports(TRAINYARD_HOME) or Ports(postgres=15432, redis=16379, web=8000)


def _database(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port
        valid = parts.scheme in ("postgres", "postgresql") and bool(parts.path.strip("/"))
    except ValueError:  # a malformed host or port
        valid = False
    if not valid:  # the value may contain a password
        raise ImproperlyConfigured(
            "DATABASE_URL is not the address of a PostgreSQL database: it must look like "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME"
        )
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(port or ""),
        "OPTIONS": {
            # The pool retries only while a request waits; the next request triggers a new attempt at once.
            "pool": {"min_size": 1, "max_size": 16, "timeout": 10, "reconnect_timeout": 10},
            "connect_timeout": 5,
            # Keepalive detects an unreachable server within seconds instead of hours.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
        "CONN_MAX_AGE": 0,
        # A pooled connection may be stale after a restart of the server.
        "CONN_HEALTH_CHECKS": True,
    }


def _email(url: str) -> dict[str, Any]:
    """Return Django's settings of a mail server."""
    schemes = {"smtp": (25, False, False), "smtp+tls": (587, True, False), "smtp+ssl": (465, False, True)}
    try:
        parts = urlsplit(url)
        port = parts.port
        valid = parts.scheme in schemes and bool(parts.hostname)
    except ValueError:  # a malformed host or port
        valid = False
    if not valid:  # the value may contain a password
        raise ImproperlyConfigured(
            "EMAIL_URL is not the address of a mail server: it must look like "
            "smtp+tls://USER:PASSWORD@HOST:PORT, smtp+ssl://… or smtp://…"
        )
    default, starts_tls, is_tls = schemes[parts.scheme]
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port or default,
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": starts_tls,
        "EMAIL_USE_SSL": is_tls,
    }


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    try:
        return int(value or default)
    except ValueError:
        raise ImproperlyConfigured(f"{name} is '{value}': it must be a whole number") from None


SECRET_KEY = os.environ.get("TRAINYARD_SECRET_KEY") or _SECRETS.django_key
DEBUG = os.environ.get("TRAINYARD_DEBUG", "") == "1"
PUBLIC_URL = os.environ.get("TRAINYARD_PUBLIC_URL", "").rstrip("/")
try:
    _PUBLIC = urlsplit(PUBLIC_URL)
    _IS_ADDRESS = _PUBLIC.scheme in ("http", "https") and bool(_PUBLIC.hostname) and _PUBLIC.port != 0
except ValueError:  # a malformed host or port
    _IS_ADDRESS = False
if PUBLIC_URL and not _IS_ADDRESS:
    raise ImproperlyConfigured("TRAINYARD_PUBLIC_URL must look like https://HOST or https://HOST:PORT")
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"] + [
    host for host in (*os.environ.get("TRAINYARD_ALLOWED_HOSTS", "").split(","), _PUBLIC.hostname) if host
]
CSRF_TRUSTED_ORIGINS = [f"{_PUBLIC.scheme}://{_PUBLIC.netloc}"] if PUBLIC_URL else []
"""Origins of the site in addition to the request's own; also used for WebSockets."""
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _PUBLIC.scheme == "https"
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if _PUBLIC.scheme == "https" else 0
SECURE_PROXY_SSL_HEADER = (
    ("HTTP_X_FORWARDED_PROTO", "https") if os.environ.get("TRAINYARD_TRUST_PROXY") == "1" else None
)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "axes",
    "channels",
    "django_htmx",
    "webapp",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "webapp.core.compression.CompressionMiddleware",
    "webapp.core.rates.rate_limit",
    "webapp.supervisor.middleware.OutageMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "webapp.accounts.middleware.note_sign_ins",
]
ROOT_URLCONF = "webapp.urls"
ASGI_APPLICATION = "webapp.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [_ASSETS / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "webapp.supervisor.contexts.outages",
            ]
        },
    }
]

DATABASE_URL = (
    os.environ.get("DATABASE_URL")
    or f"postgresql://trainyard:{_SECRETS.postgres_password}@127.0.0.1:{_PORTS.postgres}/trainyard"
)
REDIS_URL = os.environ.get("REDIS_URL") or f"redis://:{_SECRETS.redis_password}@127.0.0.1:{_PORTS.redis}/0"
DATABASES = {"default": _database(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CHANNEL_LAYERS = {
    "default": {
        # The core layer silently drops messages above its capacity; pub/sub does not.
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "trainyard"},
    }
}
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "trainyard",
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1},
    }
}
CELERY_BROKER_URL = REDIS_URL
_RUNS_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)
TRAINYARD_RUNS_AT_ONCE = _number("TRAINYARD_RUNS_AT_ONCE", _RUNS_AT_ONCE)
TRAINYARD_RUNS_PER_PERSON = _number("TRAINYARD_RUNS_PER_PERSON", 0)
EMAIL_URL = os.environ.get("EMAIL_URL", "")
"""Mail server for notifications; empty: no e-mail is sent."""
if EMAIL_URL:
    globals().update(_email(EMAIL_URL))
DEFAULT_FROM_EMAIL = os.environ.get("EMAIL_FROM") or f"trainyard@{_PUBLIC.hostname or 'localhost'}"
TRAINYARD_WEBHOOK_HOSTS = frozenset(
    host.strip().lower() for host in os.environ.get("TRAINYARD_WEBHOOK_HOSTS", "").split(",") if host.strip()
)
"""Hosts of webhooks (HOST, HOST:PORT, or ``*`` for any) whose addresses may be private."""
TRAINYARD_WEB_URL = os.environ.get("TRAINYARD_WEB_URL") or f"http://127.0.0.1:{_PORTS.web}"
"""Address under which engines reach the ingest API."""

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "webapp.accounts.services.accounts.TokensEndWithPassword"},
]
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_RESET_ON_SUCCESS = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
SILENCED_SYSTEM_CHECKS = ["axes.W002"]  # the sign-in page renders its own answer, see webapp.accounts.views
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# Two installations on one host must not end each other's sessions: cookies ignore the port.
SESSION_COOKIE_NAME = f"trainyard_session_{_PORTS.web}"
CSRF_COOKIE_NAME = f"trainyard_csrf_{_PORTS.web}"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = TRAINYARD_HOME / "static"
STATICFILES_DIRS = [_ASSETS / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
# Serve straight from static/ as well, so that a page never depends on a missed collectstatic.
WHITENOISE_USE_FINDERS = DEBUG
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024 * 1024

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    # Requests during an outage are answered with 503; the outage itself is reported elsewhere.
    "filters": {
        "available": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: getattr(record, "status_code", None) != 503,
        },
        "one_line_refusals": {"()": "webapp.core.logs.OneLineRefusals"},
    },
    "formatters": {
        "line": {
            "()": "webapp.core.logs.RedactingFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "axes": {"level": "WARNING"},
        "django.server": {"level": "WARNING"},
        "django.request": {"filters": ["available", "one_line_refusals"]},
        "httpx": {"level": "WARNING"},
    },
}
