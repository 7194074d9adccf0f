"""Preparation of a sandbox for an agent or for grading: hidden files removed, git history replaced.

The history is replaced by one synthetic commit of the current tree. A new repository is packed from that
commit alone, so no refs, tags, remotes, reflogs, stashes, worktrees, alternates, hooks or unreachable objects
of the old one remain. The index keeps its file stamps, so that ``git status`` stays fast and clean. Stale
locks are removed, conflicted files are committed as they are, settings of line ends and file modes are kept.
Where git is missing or the repository is broken, it is removed entirely and a warning is logged. To remove
more, extend ``_SCRUB``.

Test scripts refer to commits, and builds derive versions from tags. So grading keeps the commits that a
script names, under their own hashes: the base commit and its ancestors as parents of the synthetic commit; of
commits newer than the task only the files that the script checks out. The nearest tag is kept, too. Where the
project derives its version from git, all earlier commits and their tags are kept without their files: enough
for ``git describe`` with any pattern.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence

import structlog

from engine.errors import PatchError, SandboxError
from engine.patches.apply import touched
from engine.sandbox.base import Sandbox

_log = structlog.get_logger(__name__)
_reported: set[str] = set()
"""Images whose repository could not be kept, already reported in the log."""
SCRUB_S = 300.0
"""Time limit for removing a sandbox's git history, seconds."""
_SCRUB = r"""
hidden=$1 changed=$2 kept=$3; shift 3
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0
export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
new=.trainyard-git
version_tools='setuptools[_-](git|scm)|hatch-vcs|vcs[_-](version|tag)|versioneer|dunamai|\<pbr\>|git.{1,4}describe'
versioned() {  # true if the project derives its version from git
  [ -e versioneer.py ] || grep -qsE "$version_tools" ./*
}
keep() {  # arguments: whole (yes or no), commits, files of later commits
  whole=$1 commits=$2 names= seen=; shift 2
  tag=$(g describe --tags --abbrev=0 HEAD 2>/dev/null)
  for name in $commits; do
    old_commit=$(g rev-parse -q --verify "$name^{commit}" 2>/dev/null) || continue
    case " $seen " in *" $old_commit "*) continue ;; esac
    seen="$seen $old_commit"
    if [ "$whole" = yes ] && g merge-base --is-ancestor "$old_commit" HEAD; then
      names="$names $old_commit" parents="$parents -p $old_commit"
    else
      g rev-list --objects --no-walk --filter=blob:none "$old_commit" >>"$new/more" || return 1
      [ $# = 0 ] || g ls-tree -r "$old_commit" -- "$@" | cut -f1 | cut -d' ' -f3 >>"$new/more" || return 1
    fi
  done
  shallow=$seen
  if [ "$whole" = yes ] && versioned; then
    first=${parents##* }
    g rev-list "${first:-HEAD}" >"$new/earlier" || return 1
    g for-each-ref --merged "${first:-HEAD}" --format='%(objectname) %(refname)' refs/tags \
      >"$new/packed-refs" || return 1
    cut -d' ' -f1 "$new/packed-refs" | cat "$new/earlier" - >>"$new/more"
    # Shallow are kept commits that are not earlier ones, and earlier ones that were shallow before.
    shallow=$(printf '%s\n' $seen | grep -vFxf "$new/earlier")
    [ ! -f "$common/shallow" ] || shallow="$shallow $(grep -Fxf "$new/earlier" "$common/shallow")"
    tag= earlier=$(head -n 1 "$new/earlier")
    rm "$new/earlier"
  fi
  # An empty commit on top: `git show` in a script prints no tree.
  if [ -z "$parents" ]; then
    [ -z "$earlier" ] || commit=$(g commit-tree -m base -p "$earlier" "$tree") || return 1
    parents="-p $commit" names=$commit
  fi
  commit=$(g commit-tree -m base $parents "$tree") && names="$names $commit"
}
setting() { g config -f "$new/config" "$1" "$2"; }
scrub() {
  rm -rf "$new" && mkdir -p "$new/objects/pack" "$new/objects/info" "$new/refs/heads" "$new/refs/tags" &&
    mkdir "$new/info" || return 1
  old=$(g rev-parse --absolute-git-dir) && common=$(cd "$(g rev-parse --git-common-dir)" && pwd) || return 1
  rm -f "$old"/*.lock "$common"/*.lock  # stale: no process of a fresh sandbox has them
  g update-index -q --no-split-index || return 1
  if [ -n "$(g ls-files -u | head -n 1)" ]; then
    g diff-files --name-only --diff-filter=U -z | g update-index -z --add --remove --stdin || return 1
    g update-index --clear-resolve-undo 2>/dev/null
  fi
  while [ "$hidden" -gt 0 ]; do
    g rm -rfq --cached --ignore-unmatch -- "$1" || return 1
    shift; hidden=$((hidden - 1))
  done
  while [ "$changed" -gt 0 ]; do
    if [ -e "$1" ] || [ -L "$1" ]; then
      g add -f -- "$1" || return 1
    else
      g rm -fq --cached --ignore-unmatch -- "$1" || return 1
    fi
    shift; changed=$((changed - 1))
  done
  tree=$(g write-tree) && commit=$(g commit-tree -m base "$tree") || return 1
  names=$commit parents= shallow= tag= earlier=
  [ "$kept" = no ] || keep "$@" || return 1
  echo "$common/objects" >"$new/objects/info/alternates" || return 1  # the old may be on another device
  pack="pack-objects -q --window=0 --delta-base-offset $new/objects/pack/pack"  # no search for deltas
  { g rev-list --objects --no-walk $names || echo failed; [ ! -s "$new/more" ] || cat "$new/more"; } |
    cut -d' ' -f1 | (export GIT_OBJECT_DIRECTORY="$PWD/$new/objects"; g $pack) >/dev/null || return 1
  rm -f "$new/more" "$new/objects/info/alternates"
  [ -z "$shallow" ] || printf '%s\n' $shallow >"$new/shallow" || return 1
  if [ -n "$tag" ]; then
    mkdir -p "$(dirname "$new/refs/tags/$tag")" && echo "${parents##* }" >"$new/refs/tags/$tag" || return 1
  fi
  echo "$commit" >"$new/refs/heads/main" && echo 'ref: refs/heads/main' >"$new/HEAD" || return 1
  printf '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n' >"$new/config"
  printf '[gc]\n\tauto = 0\n[user]\n\tname = agent\n\temail = agent@localhost\n' >>"$new/config"
  if [ "$(g rev-parse --show-object-format 2>/dev/null)" = sha256 ]; then
    setting core.repositoryformatversion 1 && setting extensions.objectFormat sha256 || return 1
  fi
  for key in core.autocrlf core.eol core.filemode core.ignorecase core.safecrlf core.symlinks; do
    value=$(g config --local --get "$key") || continue
    setting "$key" "$value" || return 1
  done
  [ ! -f "$common/info/exclude" ] || cp "$common/info/exclude" "$new/info/" || return 1
  cp -p "$old/index" "$new/index" || return 1
  for folder in "$old" "$common"; do
    case "$folder" in /|"") return 1 ;; esac
    rm -rf "$folder" || return 1
  done
}
g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c gc.auto=0 -c core.fsmonitor=false "$@"; }
ok=no sound=no had=no
[ ! -e .git ] || had=yes
command -v git >/dev/null 2>&1 || echo 'git is not installed' >&2
if [ -e .git ] && command -v git >/dev/null 2>&1; then
  [ "$kept" = no ] || ! g rev-parse -q --verify 'HEAD^{commit}' >/dev/null 2>&1 || sound=yes
  if scrub "$@"; then ok=yes; fi
fi
if [ "$ok$sound" = noyes ]; then
  echo 'a sound repository could not be copied: sandbox.disk_mb may be too small' >&2
  exit 1
fi
rm -rf .git || exit 1
if [ "$ok" = yes ]; then mv "$new" .git || exit 1; else rm -rf "$new"; fi
if [ "$ok" = yes ] && [ "$(stat -c %u .)" != "$(id -u)" ]; then  # git refuses a folder of another user
  case "$HOME/" in
  "$PWD"/*) ;;
  *) env -u GIT_CONFIG_GLOBAL git config --global --add safe.directory "$PWD" 2>/dev/null ;;
  esac
fi
find . -mindepth 2 -name .git -prune -exec rm -rf {} + || exit 1
[ "$ok" = no ] || [ "$kept" = yes ] || [ "$(g rev-list --all --reflog --count)" = 1 ] || exit 1
for folder in "$PWD/.venv/bin" /root/.venv/bin /opt/miniconda3/envs/testbed/bin; do
  if [ -x "$folder/python" ]; then printf '%s' "$folder:$PATH"; break; fi
done
[ "$ok$had" != noyes ] || printf '\nlost'
"""


async def prepare_for_agent(
    box: Sandbox, *, setup_patch: str = "", hidden_paths: Sequence[str] = ()
) -> dict[str, str]:
    """Apply the setup patch, remove hidden paths and the git history of a fresh sandbox.

    Returns:
        Environment for its commands: the project's own Python first on ``PATH``, where it has one.

    Args:
        setup_patch: patch that turns the image into the task; ``diff`` leaves it out.
        hidden_paths: hidden tests and runners, absolute or below the workdir.

    Raises:
        SandboxError: the preparation failed; no agent caused it.
    """
    if setup_patch:
        try:
            await box.apply_patch(setup_patch)
        except PatchError as error:
            raise SandboxError(f"the task's setup patch does not apply: {error}") from error
    await box.hide(hidden_paths)
    changed = await asyncio.to_thread(touched, setup_patch)
    path = await scrub_history(box, changed=changed, hidden=hidden_paths)
    if setup_patch:
        await box.adopt()
    return {"PATH": path} if path else {}


async def scrub_history(box: Sandbox, *, changed: Sequence[str] = (), hidden: Sequence[str] = ()) -> str:
    """Replace the workdir's git history by one commit, and remove repositories nested in it.

    Returns:
        ``PATH`` with the project's own Python first; empty where it has none.

    Args:
        changed: files below the workdir whose current content belongs to that commit.
        hidden: paths left out of it.

    Raises:
        SandboxError: parts of the old history may remain.
    """
    workdir = box.spec.workdir
    inside = [
        path for path in (_below(workdir, path) for path in hidden) if path and not path.startswith("../")
    ]
    return await _scrub(box, [str(len(inside)), str(len(changed)), "no", *inside, *changed])


async def prepare_for_grading(
    box: Sandbox, *, commits: Sequence[str] = (), files: Sequence[str] = (), setup_patch: str = ""
) -> None:
    """Remove git history newer than the task, and repositories nested in the workdir.

    Args:
        commits: names of commits that the test script may use; others are removed, unknown ones are ignored.
        files: paths that the script checks out of commits newer than the task.
        setup_patch: patch that turned the image into the task. The image's own commits then count as newer
            than the task, and only ``files`` of them are kept.

    Raises:
        SandboxError: parts of the old history may remain.
    """
    changed = await asyncio.to_thread(touched, setup_patch)
    whole = "no" if setup_patch else "yes"
    await _scrub(box, ["0", str(len(changed)), "yes", *changed, whole, " ".join(commits), *files])


async def _scrub(box: Sandbox, arguments: Sequence[str]) -> str:
    command = ["/bin/sh", "-c", _SCRUB, "scrub", *arguments]
    result = await box.exec(command, timeout_s=SCRUB_S, cwd=box.spec.workdir)
    reason = result.stderr.decode(errors="replace").strip()[-500:]
    if result.exit_code != 0:
        raise SandboxError(f"the git history could not be removed: {reason or 'no reason was given'}")
    path, _, lost = result.stdout.decode(errors="replace").partition("\n")
    if lost.strip() and box.spec.image not in _reported:
        _reported.add(box.spec.image)
        _log.warning("repository removed from sandboxes", image=box.spec.image, reason=reason)
    return path.strip()


def _below(workdir: str, path: str) -> str:
    return posixpath.relpath(posixpath.normpath(posixpath.join(workdir, path)), workdir)
