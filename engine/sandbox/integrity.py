"""Preparation of a sandbox for an agent: task set up, hidden tests removed, git history replaced.

The history is replaced by one synthetic commit of the tree as it is. A new repository is packed from that
commit alone, so neither refs, tags, remotes, reflogs, stashes, worktrees, alternates, hooks nor unreachable
objects of the old one are left; the index keeps its file stamps, so that ``git status`` stays fast and clean.
Where git is missing or the repository is broken, all of it is removed. To hide more: ``_SCRUB``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from engine.errors import PatchError, SandboxError
from engine.patches.apply import touched
from engine.sandbox.base import Sandbox

_SCRUB_S = 300.0
_SCRUB = r"""
hidden=$1 changed=$2; shift 2
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0
export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE='2000-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
new=.trainyard-git
scrub() {
  old=$(g rev-parse --absolute-git-dir) && common=$(cd "$(g rev-parse --git-common-dir)" && pwd) || return 1
  g update-index -q --no-split-index || return 1
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
  commit=$(g commit-tree -m base "$(g write-tree)") || return 1
  rm -rf "$new" && mkdir -p "$new/objects/pack" "$new/objects/info" "$new/refs/heads" "$new/refs/tags" &&
    mkdir "$new/info" || return 1
  pack="pack-objects -q --revs --window=0 --delta-base-offset $new/objects/pack/pack"  # no search for deltas
  echo "$commit" | g $pack >/dev/null || return 1
  echo "$commit" >"$new/refs/heads/main" && echo 'ref: refs/heads/main' >"$new/HEAD" || return 1
  printf '[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n' >"$new/config"
  printf '[gc]\n\tauto = 0\n[user]\n\tname = agent\n\temail = agent@localhost\n' >>"$new/config"
  [ ! -f "$common/info/exclude" ] || cp "$common/info/exclude" "$new/info/" || return 1
  cp -p "$old/index" "$new/index" || return 1
  for folder in "$old" "$common"; do
    case "$folder" in /|"") return 1 ;; esac
    rm -rf "$folder" || return 1
  done
}
g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c gc.auto=0 -c core.fsmonitor=false "$@"; }
ok=no
if [ -e .git ] && command -v git >/dev/null 2>&1 && scrub "$@"; then ok=yes; fi
rm -rf .git || exit 1
if [ "$ok" = yes ]; then mv "$new" .git || exit 1; else rm -rf "$new"; fi
find . -mindepth 2 -name .git -prune -exec rm -rf {} + || exit 1
[ "$ok" = no ] || [ "$(g rev-list --all --reflog --count)" = 1 ] || exit 1
for folder in "$PWD/.venv/bin" /root/.venv/bin /opt/miniconda3/envs/testbed/bin; do
  if [ -x "$folder/python" ]; then printf '%s' "$folder:$PATH"; break; fi
done
"""


async def prepare_for_agent(
    box: Sandbox, *, setup_patch: str = "", hidden_paths: Sequence[str] = ()
) -> dict[str, str]:
    """Apply the setup patch, remove hidden paths and the git history of a fresh sandbox.

    Returns:
        Environment for its commands: the project's own Python first on ``PATH``, where it has one.

    Args:
        setup_patch: what makes the image the task; ``diff`` does not mention it afterwards.
        hidden_paths: hidden tests and runners, absolute or below the workdir.

    Raises:
        SandboxError: it could not be done; nothing an agent did.
    """
    if setup_patch:
        try:
            await box.apply_patch(setup_patch)
        except PatchError as error:
            raise SandboxError(f"the task's setup patch does not apply: {error}") from error
    await box.hide(hidden_paths)
    path = await scrub_history(box, changed=touched(setup_patch), hidden=hidden_paths)
    if setup_patch:
        await box.adopt()
    return {"PATH": path} if path else {}


async def scrub_history(box: Sandbox, *, changed: Sequence[str] = (), hidden: Sequence[str] = ()) -> str:
    """Replace the workdir's git history by one commit, and remove repositories nested in it.

    Returns:
        ``PATH`` with the project's own Python first; empty where it has none.

    Args:
        changed: files below the workdir whose present content belongs to that commit.
        hidden: paths that do not belong to it.

    Raises:
        SandboxError: something of the old history may be left.
    """
    workdir = box.spec.workdir
    inside = [
        path for path in (_below(workdir, path) for path in hidden) if path and not path.startswith("../")
    ]
    arguments = [str(len(inside)), str(len(changed)), *inside, *changed]
    result = await box.exec(["/bin/sh", "-c", _SCRUB, "scrub", *arguments], timeout_s=_SCRUB_S, cwd=workdir)
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()[-500:]
        raise SandboxError(f"the git history could not be removed: {said or 'no reason was given'}")
    return result.stdout.decode(errors="replace").strip()


def _below(workdir: str, path: str) -> str:
    return posixpath.relpath(posixpath.normpath(posixpath.join(workdir, path)), workdir)
