"""Search over trajectories: words in every text, filters, saved searches, in page, API and command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import launched, post, relaunched, signed_in
from webapp.core.permissions import Role
from webapp.ingestion.services.trajectories import import_lines
from webapp.models import AuditEntry, Passage, Run, SavedSearch, Scan, Trajectory
from webapp.rollouts.contexts.snippets import snippet
from webapp.rollouts.selectors.filters import TrajectoryFilters, parse_filters
from webapp.rollouts.selectors.passages import Match
from webapp.rollouts.selectors.query_words import candidates, wanted_pattern, websearch
from webapp.rollouts.selectors.search import search
from webapp.rollouts.services import passages, removal, scans, searches
from workers import app as tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def yard() -> Yard:
    yard = make_yard(iterations=2)
    index()
    return yard


def index() -> None:
    while passages.index_pending():
        pass


def total(**filters: Any) -> int:
    return search(TrajectoryFilters(**filters), before=None).total


def places(q: str, **filters: Any) -> set[str]:
    """Return the places of the texts that match."""
    result = search(TrajectoryFilters(q=q, **filters), before=None)
    assert bool(result.matches) == bool(result.total)
    return {match.place for matches in result.matches.values() for match in matches}


def add_rollout(yard: Yard, number: int, *steps: dict[str, Any], patch: str = "") -> Trajectory:
    """Ingest and index a rollout with these steps."""
    key = yard.ref(1, 0, number)
    yard.stream.add("trajectory_started", ref=key)
    for position, step in enumerate(steps):
        yard.stream.step(key, position, **step)
    yard.stream.add(
        "trajectory_finished",
        ref=key,
        termination="submitted",
        num_steps=len(steps),
        patch=patch,
        verdict=None,
        reward=None,
    )
    yard.post()
    index()
    return Trajectory.objects.get(run=yard.run, iteration=1, index=number)


def test_search_matches_words_and_filters(yard: Yard) -> None:
    everything = Trajectory.objects.count()
    assert total() == everything
    assert total(q="comparison") == everything - 1, "all but the live rollout"
    assert total(q='"line 316"', run=yard.run.pk, place="thoughts") == everything - 1
    assert total(q="comparison -316") == total(q="nowhere") == total(run=yard.run.pk + 1) == 0
    assert total(q="-nowhere") == total(q="()") == 0, "nothing is wanted"
    assert total(q="comparison", verdict="passed") == total(verdict="passed") > 0
    assert total(termination="running") == 1
    assert total(phase="eval") == 2
    assert total(reward_min=0.5) == Trajectory.objects.filter(reward=1).count()
    assert total(task=yard.tasks[0].key) == total(task="iterutils-0") > 0
    result = search(TrajectoryFilters(q="comparison"), before=None, size=3)
    assert [len(result.rows), len(result.matches)] == [3, 3]
    assert {tuple(match.index for match in matches) for matches in result.matches.values()} == {(0, 1)}
    assert result.next_before == result.rows[-1].pk
    older = search(TrajectoryFilters(q="comparison"), before=result.next_before, size=3)
    assert older.rows[0].pk < result.rows[-1].pk


def test_frequent_words_are_searched_page_by_page(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = TrajectoryFilters(q="comparison")
    every = search(filters, before=None)
    assert not every.capped
    assert not search(filters, before=None, size=2).capped, "all were compared"
    monkeypatch.setattr("webapp.rollouts.selectors.passages.WINDOW", 4)
    monkeypatch.setattr("webapp.rollouts.selectors.passages.MOST_MATCHES", 4)
    page = search(filters, before=None, size=2)
    assert page.capped
    assert 3 <= page.total <= 4
    assert "2 of more than" in run_command("search", "comparison", "-n", 2)
    found = list(page.rows)
    while page.next_before is not None:
        page = search(filters, before=page.next_before, size=2)
        found += page.rows
    assert [row.pk for row in found] == [row.pk for row in every.rows]
    assert not page.capped, "the last page compares all older ones"
    assert total(q="comparison", verdict="passed") == total(verdict="passed")


def test_search_covers_every_text(yard: Yard) -> None:
    client = signed_in(Role.OPERATOR)
    row = add_rollout(
        yard, 60,
        {"thought": "Giraffes first", "arguments": {"cmd": "zebra --all", "path": "/a/okapi_file.py"}},
        {"observation": "Traceback: zanzibar.is_broken(3)", "error": "lemur"},
        {"tool": "", "arguments": {}, "response": "no call, only quagga"},
        patch="+++ b/x.py\n+ tapir = 1\n",
    )  # fmt: skip
    yard.tasks[0].problem_statement = "pkg.Bonobo_fails/again"
    yard.tasks[0].save()
    assert places("giraffes") == {"thoughts"}
    assert places("zebra") == places("okapi") == places("quagga") == {"actions"}
    assert places("zanzibar") == places("lemur") == {"observations"}
    assert places("tapir") == {"patches"}
    assert places("bonobo") == places("pkg.bonobo_fails") == {"statements"}
    assert places("zanzibar.is_broken") == places('"ZANZIBAR is"') == {"observations"}
    assert (
        places("zanzibar -broken") == places("zanzibar", place="patches") == places('"is zanzibar"') == set()
    )
    assert places("giraffes zanzibar") == set(), "words of one text"
    assert places("zanzibar or giraffes", task=row.task_key) == {"observations", "thoughts"}
    [match] = search(TrajectoryFilters(q="zanzibar"), before=None).matches[row.pk]
    assert (match.index, match.action) == (1, "view")
    page = client.get("/trajectories/", {"q": "zanzibar"}).content.decode()
    assert "<mark>zanzibar</mark>" in page
    assert "find=zanzibar#step-1" in page
    assert "observation of step 1" in page
    found = client.get("/api/v1/trajectories", {"q": "tapir"}).json()
    assert [match["place"] for match in found["items"][0]["matches"]] == ["patches"]
    assert "tapir = 1" in run_command("search", "tapir")
    Run.objects.filter(pk=yard.run.pk).update(config=yard.run.config | {"policy": {"type": "oracle"}})
    assert places("tapir") == places("zanzibar") == set(), "an oracle's rollout is the answer"
    assert search(TrajectoryFilters(q="tapir"), before=None, with_answers=True).total == 1


def test_long_texts_are_found_to_their_end(yard: Yard) -> None:
    long = "\n".join(f"{number} self.value_{number} = old(argument)" for number in range(6_000))
    giant = "x" * 40_000
    row = add_rollout(yard, 61, {"observation": f"{long} platypus", "thought": giant, "response": ""}, {})
    observed = Passage.objects.filter(trajectory=row, place="observations").order_by("number")
    assert len(observed) > 5
    assert {(passage.first_step, passage.last_step) for passage in observed[: len(observed) - 1]} == {(0, 0)}
    assert places("platypus") == {"observations"}
    for number in range(100, 6_000, 100):
        phrase = f'"old argument {number} self value {number} old argument {number + 1}"'
        assert total(q=phrase) == 1, phrase
    assert places('"platypus 1 x"') == set(), "no phrase spans two steps"
    hostile = " ".join(["y" * 40_000] * 3 + ["x"] * 600 + ["okapi"])
    add_rollout(yard, 64, {"observation": hostile}, {"thought": "quagga " * 20_000})
    assert places("okapi") == {"observations"}


def test_workers_index_what_ended_in_the_background(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(tasks, "send", lambda *arguments: sent.append(arguments))
    monkeypatch.setattr(passages, "BATCH", 1)
    for number in (62, 63):
        key = yard.ref(1, 0, number)
        yard.stream.add("trajectory_started", ref=key)
        yard.stream.step(key, 0, thought="armadillo")
        yard.stream.finished(key, steps=1)
    yard.post()
    page = signed_in(Role.VIEWER).get("/trajectories/", {"q": "armadillo"}).content.decode()
    assert "2 ended rollouts cannot be found by words yet" in page
    while scans.scan_pending():
        pass
    tasks.scan()
    assert [total(q="armadillo"), sent.pop()] == [1, ("trainyard.scan",)], "the newest first"
    tasks.scan()
    tasks.scan()
    assert [total(q="armadillo"), len(sent)] == [2, 1]


def test_a_repeated_trajectory_is_indexed_again() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.add("trajectory_started", ref=ref(0, "a", 0))
    stream.step(ref(0, "a", 0), 0, thought="armadillo")
    stream.finished(ref(0, "a", 0), steps=1)
    post(claim, stream)
    index()
    assert total(q="armadillo") == 1
    later = Stream(epoch=2, first_seq=stream.next_seq)
    newer = relaunched(run, claim)
    later.started(resumed_from=0)
    later.trajectory(ref(0, "a", 0))
    post(newer, later)
    assert (total(q="armadillo"), Scan.objects.get().is_indexed) == (0, False)
    assert removal._PARTS[0] == Scan._meta.db_table, "a worker that indexes locks the scan"
    index()
    assert total(q="look") == 1


def test_a_later_attempt_during_the_indexing_is_indexed_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = Scan.objects.latest("pk")
    Scan.objects.filter(pk=scan.pk).update(is_indexed=False)
    Passage.objects.filter(trajectory_id=scan.pk).delete()

    def replaced(pk: int) -> Any:
        Trajectory.objects.filter(pk=pk).update(epoch=2)
        return iter([("thoughts", 0, 0, 0, "old")])

    monkeypatch.setattr(passages, "_passages", replaced)
    passages.index_pending()
    assert not Passage.objects.filter(trajectory_id=scan.pk).exists()
    assert not Scan.objects.get(pk=scan.pk).is_indexed


def test_a_trajectory_that_cannot_be_read_does_not_hold_up_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pk: int) -> Any:
        raise RecursionError

    Scan.objects.update(is_indexed=False)
    monkeypatch.setattr(passages, "_passages", fail)
    index()
    assert not Scan.objects.filter(is_indexed=False).exists()


def test_imported_trajectories_are_searched() -> None:
    key = {"iteration": 0, "phase": "imported", "task_id": "t", "index": 0}
    events = (
        {"type": "trajectory_started", "ref": key},
        {"type": "step_finished", "ref": key, "index": 0, "tool": "file_editor", "arguments": {},
         "thought": "", "observation": "armadillo", "response": ""},
        {"type": "trajectory_finished", "ref": key, "termination": "submitted", "num_steps": 1,
         "verdict": None, "reward": None},
    )  # fmt: skip
    import_lines(file_name="x.jsonl", lines=[json.dumps(event).encode() for event in events])
    index()
    assert places("armadillo") == {"observations"}


def test_search_has_a_constant_number_of_queries(yard: Yard) -> None:
    counts = []
    for size in (1, 10, 20):
        with CaptureQueriesContext(connection) as captured:
            search(TrajectoryFilters(q="comparison or line or lo"), before=None, size=size)
        counts.append(len(captured))
    assert max(counts) <= 16


def test_snippet_highlights_search_words() -> None:
    text = "x" * 500 + " an off-by-one error <b> and OFF BY_ONE again, not off by ones"
    excerpt = snippet(Match(place="patches", text=text), wanted_pattern('"off by one" -rename'))
    assert [part for part, is_hit in excerpt.parts if is_hit] == ["off-by-one", "OFF BY_ONE"]
    assert excerpt.parts[0] == ("… ", False)
    assert (excerpt.query, excerpt.label) == ("#patch", "patch")
    assert wanted_pattern("-only") is None
    assert websearch('np.array "a-b" -x or (c)') == '"np array" "a b" -"x" or "c"'
    assert candidates('"trial or error" -or or c') == '"trial" "or" "error" -"or" or "c"'


def test_a_search_that_compared_not_all_texts_says_so(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    client = signed_in(Role.VIEWER)
    query = {"q": '"316 316 comparison"'}
    assert "No trajectory matches" in client.get("/trajectories/", query).content.decode()
    monkeypatch.setattr("webapp.rollouts.selectors.passages.MOST_MATCHES", 1)
    monkeypatch.setattr("webapp.rollouts.selectors.passages.WINDOW", 1)
    page = client.get("/trajectories/", query).content.decode()
    assert "No trajectory matches" not in page
    assert "those of older rollouts were not compared" in page


def test_invalid_filters_are_named(yard: Yard) -> None:
    filters, problems = parse_filters({"run": "x", "place": "moon", "q": " a ", "before": "3", "verdict": ""})
    assert filters == TrajectoryFilters(q="a")
    assert [problem.partition(":")[0] for problem in problems] == ["place", "run"]
    client = signed_in(Role.VIEWER)
    page = client.get("/trajectories/", {"reward_min": "<b>nan"}).content.decode()
    assert "Ignored: reward_min" in page
    assert "<b>nan" not in page
    assert client.get("/api/v1/trajectories?place=moon").status_code == 422
    assert client.get("/api/v1/trajectories?q=a%00b").status_code == 422
    with pytest.raises(CommandFailedError, match="q: "):
        run_command("search", "x" * 201)


def test_searches_are_saved_and_shared(yard: Yard) -> None:
    ada, eve = signed_in(Role.OPERATOR, "ada"), signed_in(Role.OPERATOR, "eve")
    form = {"name": "passed ones", "query": "q=comparison&verdict=passed&before=7"}
    saved = ada.post("/trajectories/searches/save/", form)
    assert saved["Location"] == "/trajectories/?q=comparison&verdict=passed&before=7"
    assert SavedSearch.objects.get().filters == {"q": "comparison", "verdict": "passed"}
    page = signed_in(Role.VIEWER).get("/trajectories/?verdict=passed&q=comparison").content.decode()
    assert 'href="?q=comparison&amp;verdict=passed"' in page
    assert 'aria-current="true"' in page
    assert 'title="saved by ada"' in page
    assert "passed ones/remove/" not in page
    assert "searches/save/" not in page
    [record] = eve.get("/api/v1/searches").json()
    assert (record["author"], record["filters"]) == ("ada", {"q": "comparison", "verdict": "passed"})
    assert record == json.loads(run_command("searches", "list", "--json"))[0]
    expected = total(q="comparison", verdict="passed")
    assert f"of {expected} trajectories" in run_command("search", "--saved", "passed ones")
    assert "of 0 trajectories" in run_command("search", "--saved", "passed ones", "--run", 999_999)
    assert eve.post("/trajectories/searches/save/", form).status_code == 403
    assert eve.put("/api/v1/searches/passed ones", {"q": "x"}, "application/json").status_code == 403
    assert eve.put("/api/v1/searches/%20passed ones", {"q": "x"}, "application/json").status_code == 403
    assert SavedSearch.objects.get().filters == {"q": "comparison", "verdict": "passed"}
    assert eve.delete("/api/v1/searches/passed ones").status_code == 403
    assert eve.post("/trajectories/searches/passed ones/remove/").status_code == 403
    changed = ada.put("/api/v1/searches/passed ones", {"q": "x"}, "application/json").json()
    assert changed["filters"] == {"q": "x"}
    assert signed_in(Role.ADMIN).delete("/api/v1/searches/passed ones").status_code == 204
    assert ada.post("/trajectories/searches/passed ones/remove/").status_code == 404
    run_command("search", "comparison", "--save", "mine")
    assert run_command("searches", "list") == "mine: q=comparison\n"
    assert run_command("searches", "remove", "mine") == "search mine was removed\n"
    with pytest.raises(CommandFailedError, match="there is no saved search 'mine'"):
        run_command("search", "--saved", "mine")
    actions = AuditEntry.objects.filter(action__startswith="search.").values_list("action", flat=True)
    assert sorted(actions) == ["search.remove"] * 2 + ["search.save"] * 3


@pytest.mark.parametrize(
    ("name", "query", "problem"),
    [("a/b", "q=x", "name: expected"), ("mine", "before=3", "no filter"), ("mine", "q=x", "saved searches:")],
)
def test_searches_that_cannot_be_saved_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, query: str, problem: str
) -> None:
    monkeypatch.setattr(searches, "MOST", 0)
    client = signed_in(Role.OPERATOR)
    page = client.post("/trajectories/searches/save/", {"name": name, "query": query}, follow=True)
    assert problem in page.content.decode()
    assert not SavedSearch.objects.exists()
