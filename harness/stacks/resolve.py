"""From a pin as it is written to what it stands for now: commit, tree, version, package folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.stacks import git
from harness.stacks.cache import Progress
from harness.stacks.errors import StackError
from harness.stacks.pins import BuiltPin, GitPin, PathPin, Pin, ReleasePin, is_url
from harness.stacks.settings import Settings, Stack
from harness.stacks.trees import CommitTree, FolderTree, SourceTree
from harness.stacks.versions import version_of, with_local


@dataclass(frozen=True)
class ResolvedPin:
    """A pin with everything that decides what its part of an overlay holds.

    `tree` is None for a release; `prefix` ("" or "src/") is where in the tree `folders` lie; `url` goes into
    direct_url.json.
    """

    pin: Pin
    built: BuiltPin
    tree: SourceTree | None = None
    prefix: str = ""
    folders: tuple[str, ...] = ()
    url: str = ""


def resolve(stack: Stack, settings: Settings, progress: Progress) -> list[ResolvedPin]:
    """Resolve every pin of a stack, in the order of their names. Raises StackError naming the stack and the pin."""
    resolved = []
    for pin in stack.pins.values():
        try:
            resolved.append(resolve_pin(pin, settings, progress))
        except StackError as error:
            raise type(error)(f"stack '{stack.name}': {error}") from error.__cause__
        except OSError as error:
            raise StackError(f"stack '{stack.name}': {pin.requested}: {error}.") from error
    return resolved


def resolve_pin(pin: Pin, settings: Settings, progress: Progress) -> ResolvedPin:
    """Resolve one pin. Nothing is downloaded for a release; a git URL is cloned into the cache. Raises StackError."""
    match pin:
        case ReleasePin():
            return ResolvedPin(
                pin, BuiltPin(pin.distribution, "release", pin.version, None, False, None, pin.requested)
            )
        case GitPin():
            return _resolve_git(pin, settings, progress)
        case PathPin():
            return _resolve_path(pin, settings)


def _resolve_git(pin: GitPin, settings: Settings, progress: Progress) -> ResolvedPin:
    repository, commit = git.open_repository(pin, settings.clones.get(pin.distribution), settings.cache, progress)
    tree = CommitTree(repository, commit)
    prefix, folders = _locate(pin, tree, settings, f"revision {commit[:12]} of {repository.path}")
    version = with_local(version_of(tree, prefix, folders[0]), f"g{commit[:9]}")
    digest = tree.digest(prefix, folders)
    built = BuiltPin(pin.distribution, "git", version, commit, False, digest, pin.requested)
    url = git.without_password(pin.source) if is_url(pin.source) else repository.path.as_uri()
    return ResolvedPin(pin, built, tree, prefix, folders, url)


def _resolve_path(pin: PathPin, settings: Settings) -> ResolvedPin:
    if not pin.path.is_dir():
        raise StackError(f"{pin.requested}: there is no folder {pin.path}.")
    tree = FolderTree(pin.path)
    prefix, folders = _locate(pin, tree, settings, str(pin.path))
    commit, dirty = tree.commit(tuple(prefix + folder for folder in folders))
    digest = tree.digest(prefix, folders)
    version = version_of(tree, prefix, folders[0])
    for label in _labels(commit, dirty, digest):
        version = with_local(version, label)
    built = BuiltPin(pin.distribution, "path", version, commit, dirty, digest, pin.requested)
    return ResolvedPin(pin, built, tree, prefix, folders, pin.path.as_uri())


def _labels(commit: str | None, dirty: bool, digest: str) -> Iterable[str]:
    if commit is not None:
        yield f"g{commit[:9]}"
    if dirty:
        yield f"d{digest[:9]}"


def _locate(pin: Pin, tree: SourceTree, settings: Settings, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the prefix and those package folders that the tree has; the first of them is a must."""
    folders = settings.package_folders(pin.distribution)
    for prefix in ("", "src/"):
        if tree.is_package(prefix + folders[0]):
            return prefix, tuple(folder for folder in folders if tree.is_package(prefix + folder))
    raise StackError(
        f"{pin.requested}: no package {folders[0]}/ or src/{folders[0]}/ in {where}. "
        f"Name the top of a {pin.distribution} tree, or set [tool.parity.distributions.{pin.distribution}] packages."
    )
