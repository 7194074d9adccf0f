"""Commands about saved views of the runs table: ``run view list|save|remove``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.accounts.cli import Username, find_user
from webapp.core.cli import AsJson, command_group, print_json, print_result
from webapp.runs.api.run_views import RunViewOut
from webapp.runs.selectors.run_views import views_of
from webapp.runs.services import run_views as writes

app = command_group("List and save views of the runs table.")
Name = Annotated[str, typer.Argument(help="Name of the view.")]


@app.command("list")
def list_(username: Username, as_json: AsJson = False) -> None:
    """List a user's views with their query strings."""
    views = [RunViewOut.from_orm(view).model_dump() for view in views_of(find_user(username).pk)]
    if as_json:
        print_json(views)
        return
    for view in views:
        default = " (default)" if view["is_default"] else ""
        print(visible_line(f"{view['name']}{default}: /runs/?{view['query']}"))


@app.command()
def save(
    username: Username,
    name: Name,
    query: Annotated[
        str, typer.Argument(help="Query string of the page, e.g. 'group=recipe&sort=-heldout'.")
    ],
    default: Annotated[bool, typer.Option("--default", help="Open the page of runs with it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Save a view of a user; one of the same name is replaced."""
    view = writes.save_view(user=find_user(username), name=name, query=query, is_default=default)
    print_result(visible_line(str(view)), RunViewOut.from_orm(view).model_dump(), as_json=as_json)


@app.command()
def remove(username: Username, name: Name, as_json: AsJson = False) -> None:
    """Remove a view of a user."""
    writes.remove_view(user=find_user(username), name=name)
    print_result(visible_line(f"removed {name}"), {"removed": name}, as_json=as_json)
