"""Assembly of the routers, and conversion of errors to JSON.

Only the schema (``openapi.json``) is served: ninja's documentation page loads its scripts from a CDN.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.operation import Operation
from ninja.parser import Parser

from engine.errors import ConfigError, DatasetError, MissingScoreError
from engine.reading import parse_json
from webapp.datasets import api as datasets
from webapp.endpoints import api as endpoints
from webapp.evaluations import api as evaluations
from webapp.experiments import api as experiments
from webapp.experiments.services import TextsConflictError
from webapp.ingestion import api as ingest
from webapp.ingestion.services import ingest as ingest_service
from webapp.notifications import api as notifications
from webapp.rollouts.api import annotations as annotation_routes
from webapp.rollouts.api import scanners, search, tokens, trajectories, what_if
from webapp.runs.api import (
    alerts,
    files,
    logs,
    models,
    plans,
    recipes,
    run_views,
    runs,
    steps,
    system,
    timelines,
)
from webapp.runs.api import checkpoints as run_checkpoints
from webapp.runs.api import edits as run_edits
from webapp.runs.services.attempts import NoTokenError
from webapp.runs.services.edits import EditConflictError
from webapp.runs.services.states import IllegalTransitionError
from webapp.sandboxes import api as pool


class StrictParser(Parser):
    """JSON parser that reads ``Infinity`` and ``NaN``, which PostgreSQL's JSON refuses, as text."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return the body's JSON; ninja answers a ValueError with 400."""
        return parse_json(request.body, parse_constant=str)


class Api(NinjaAPI):
    """API whose operation ids are the names of the routes' functions, wherever their modules are."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Return the name by which generated clients call an operation."""
        return operation.view_func.__name__


api = Api(title="Trainyard", version="1", urls_namespace="api", docs_url=None, parser=StrictParser())
api.add_router("", alerts.router)
api.add_router("", annotation_routes.router)
api.add_router("", datasets.router)
api.add_router("", endpoints.router)
api.add_router("", evaluations.router)
api.add_router("", experiments.router)
api.add_router("", files.router)
api.add_router("", ingest.router)
api.add_router("", logs.router)
api.add_router("", models.router)
api.add_router("", notifications.router)
api.add_router("", plans.router)
api.add_router("", pool.router)
api.add_router("", run_checkpoints.router)
api.add_router("", run_edits.router)
api.add_router("", recipes.router)
api.add_router("", run_views.router)
api.add_router("", runs.router)
api.add_router("", scanners.router)
api.add_router("", search.router)
api.add_router("", steps.router)
api.add_router("", system.router)
api.add_router("", timelines.router)
api.add_router("", trajectories.router)
api.add_router("", tokens.router)
api.add_router("", what_if.router)


def _answer(status: int, **fields: Any) -> HttpResponse:
    return api.create_response(HttpRequest(), fields, status=status)


@api.exception_handler(ConfigError)
def _wrong_settings(_request: HttpRequest, error: ConfigError) -> HttpResponse:
    return _answer(422, detail=str(error), problems=[asdict(problem) for problem in error.problems])


@api.exception_handler(MissingScoreError)
@api.exception_handler(DatasetError)
def _unusable(_request: HttpRequest, error: Exception) -> HttpResponse:
    return _answer(422, detail=str(error))


@api.exception_handler(PermissionDenied)
def _not_allowed(_request: HttpRequest, error: PermissionDenied) -> HttpResponse:
    return _answer(403, detail=str(error))


@api.exception_handler(DataError)
def _unstorable(_request: HttpRequest, _error: Exception) -> HttpResponse:
    return _answer(422, detail="a value cannot be stored: it holds the character NUL or does not fit")


@api.exception_handler(NoTokenError)
def _no_token(_request: HttpRequest, error: NoTokenError) -> HttpResponse:
    return _answer(409, detail=str(error))


@api.exception_handler(IllegalTransitionError)
def _conflict(_request: HttpRequest, error: IllegalTransitionError) -> HttpResponse:
    return _answer(409, detail=str(error), state=error.state)


@api.exception_handler(EditConflictError)
def _edited(_request: HttpRequest, error: EditConflictError) -> HttpResponse:
    return _answer(409, detail=str(error), by=error.by, run=runs.RunOut.from_orm(error.run).dict())


@api.exception_handler(TextsConflictError)
def _texts_edited(_request: HttpRequest, error: TextsConflictError) -> HttpResponse:
    return _answer(409, detail=str(error))


@api.exception_handler(ingest_service.BadTokenError)
def _bad_token(_request: HttpRequest, error: Exception) -> HttpResponse:
    return _answer(401, detail=str(error))


@api.exception_handler(ingest_service.TooLargeError)
def _too_large(_request: HttpRequest, error: Exception) -> HttpResponse:
    return _answer(413, detail=str(error))


@api.exception_handler(ingest_service.MalformedError)
def _malformed(_request: HttpRequest, error: ingest_service.MalformedError) -> HttpResponse:
    return _answer(422, detail=str(error), line=error.line)


@api.exception_handler(ingest_service.GapError)
def _gap(_request: HttpRequest, error: ingest_service.GapError) -> HttpResponse:
    return _answer(409, detail=str(error), expected_seq=error.expected_seq)


@api.exception_handler(ingest_service.RunOverError)
def _over(_request: HttpRequest, error: ingest_service.RunOverError) -> HttpResponse:
    return _answer(410, detail=str(error), state=error.state, acked_seq=error.acked_seq)


@api.exception_handler(ingest_service.StaleEpochError)
def _fenced(_request: HttpRequest, error: ingest_service.StaleEpochError) -> HttpResponse:
    return _answer(409, detail=str(error), epoch=error.epoch)
