"""FedReach describes a checkout with git, and runs no program that the checkout names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedreach.runs.describe import git_revision, package_revision

PLAIN = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


def git(folder: Path, *words: str, check: bool = True) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words],
        check=check,
        capture_output=True,
        text=True,
        env=os.environ | PLAIN,
        timeout=20,
    )
    return done.stdout.strip()


class Checkout:
    """A checkout with a changed file, and a program that leaves a trace."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trace = folder / "checkout", folder / "ran"
        self.program = folder / "program.sh"
        self.program.write_text(f"#!/bin/sh\ntouch {self.trace}\n", encoding="utf-8")
        self.program.chmod(0o755)
        self.file = self.folder / "package" / "runs" / "a.py"
        self.file.parent.mkdir(parents=True)
        git(self.folder, "init", "-q")
        self.file.write_text("x = 1\n", encoding="utf-8")
        self.commit()
        self.change()

    def change(self) -> None:
        """Change the file but not its size, so that git must read it."""
        number = int(self.file.read_text(encoding="utf-8")[4])
        self.file.write_text(f"x = {number + 1}\n", encoding="utf-8")

    def commit(self) -> None:
        git(self.folder, "add", ".")
        git(self.folder, "commit", "-q", "-m", "one")

    def set(self, *names: str, value: str | None = None) -> None:
        for name in names:
            git(self.folder, "config", name, str(self.program) if value is None else value)


def filters(checkout: Checkout, name: str = "evil", key: str = "clean") -> None:
    (checkout.folder / ".gitattributes").write_text(f"*.py filter={name} diff={name}\n", encoding="utf-8")
    checkout.commit()
    checkout.set(f"filter.{name}.{key}")
    checkout.set(f"filter.{name}.required", value="true")
    checkout.change()


def included(checkout: Checkout) -> None:
    filters(checkout, key="smudge")
    (checkout.folder / "more").write_text(f'[filter "evil"]\nclean = {checkout.program}\n', encoding="utf-8")
    checkout.set("include.path", value="../more")


def worktree_config(checkout: Checkout) -> None:
    filters(checkout, key="smudge")
    checkout.set("extensions.worktreeConfig", value="true")
    git(checkout.folder, "config", "--worktree", "filter.evil.clean", str(checkout.program))


def hook(checkout: Checkout) -> None:
    hooks = checkout.folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).write_bytes(checkout.program.read_bytes())
        (hooks / name).chmod(0o755)
    (checkout.folder / "b.py").write_text("y = 1\n", encoding="utf-8")
    checkout.commit()
    checkout.change()
    os.utime(checkout.folder / "b.py", (1, 1))  # so that git wants to write its index


def submodule(checkout: Checkout) -> None:
    other = checkout.folder.parent / "other"
    other.mkdir()
    inner = Checkout(other)
    filters(inner)
    git(checkout.folder, "submodule", "add", str(inner.folder), "sub")
    checkout.commit()
    checkout.change()
    git(checkout.folder / "sub", "config", "filter.evil.clean", str(checkout.program))
    (checkout.folder / "sub" / "package" / "runs" / "a.py").write_text("x = 9\n", encoding="utf-8")


def partial_clone(checkout: Checkout) -> None:
    """Miss the tree of HEAD, which git then fetches through the program of the remote."""
    checkout.set("core.repositoryFormatVersion", value="1")
    checkout.set("extensions.partialClone", value="origin")
    checkout.set("remote.origin.url", value=str(checkout.folder))
    checkout.set("remote.origin.promisor", value="true")
    checkout.set("remote.origin.uploadpack")
    tree = git(checkout.folder, "rev-parse", "HEAD^{tree}")
    (checkout.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()


def other_programs(checkout: Checkout) -> None:
    (checkout.folder / ".gitattributes").write_text("*.py diff=evil merge=evil\n", encoding="utf-8")
    checkout.set("core.pager", "core.editor", "core.sshCommand", "core.askPass", "core.gitProxy", "diff.external")
    checkout.set("diff.evil.textconv", "diff.evil.command", "merge.evil.driver", "gpg.program", "credential.helper")
    checkout.set(
        "core.alternateRefsCommand", "sequence.editor", "pager.status", "pager.rev-parse", "uploadpack.packObjectsHook"
    )
    checkout.set("log.showSignature", "status.submoduleSummary", value="true")
    checkout.set("alias.status", "alias.rev-parse", "alias.config", value=f"!{checkout.program}")


CONFIGURED: dict[str, tuple[Callable[[Checkout], object], bool]] = {  # and whether `git status` itself runs the program
    "core.fsmonitor": (lambda checkout: checkout.set("core.fsmonitor"), True),
    "hooks": (hook, True),
    "clean": (filters, True),
    "process": (lambda checkout: filters(checkout, key="process"), True),
    "a filter with odd letters": (lambda checkout: filters(checkout, "e.V!l*'\"$x"), True),
    "a filter with =": (lambda checkout: filters(checkout, "a=b"), True),
    "included": (included, True),
    "config of a worktree": (worktree_config, True),
    "submodule": (submodule, True),
    "partial clone": (partial_clone, True),
    "others": (other_programs, False),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_no_program_of_a_checkout_runs(name: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    configure, runs = CONFIGURED[name]
    configure(checkout)
    checkout.trace.unlink(missing_ok=True)
    found = [git_revision(checkout.folder), package_revision(checkout.file)]
    assert not checkout.trace.exists()
    if name not in ("a filter with =", "partial clone"):
        head = git(checkout.folder, "rev-parse", "HEAD")
        assert found == [{"revision": head, "changed": True}, f"{head} (changed)"]
    git(checkout.folder, "status", check=False)
    assert checkout.trace.exists() == runs  # else this test shows nothing


def test_variables_of_git_name_no_other_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that git has started, such as a hook, inherits them."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = Checkout(tmp_path / "one"), Checkout(tmp_path / "two")
    two.commit()
    head = git(one.folder, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(two.folder / ".git"))
    assert git_revision(one.folder) == {"revision": head, "changed": True}
