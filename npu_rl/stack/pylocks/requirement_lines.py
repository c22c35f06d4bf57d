"""A lock of packages as a requirements file of pip: names, versions and hashes, and no index."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.stack.pylocks.pylock_file import LockedPackage, Pylock


def requirement_lines(pylock: Pylock) -> Iterator[str]:
    """Yield the lines of a requirements file. Packages that are installed alone come last."""
    alone = {one.name for one in pylock.alone}
    target = pylock.target
    yield f"# {pylock.manifest}: {len(pylock.packages)} packages for Python {target.python} on {target.machine}."
    yield "# Install with --no-deps --require-hashes: each package is listed, but for what the host or the tree brings:"
    yield f"# {', '.join(pylock.left_out)}"
    source = ", ".join(f"{one.name}=={one.version}" for one in pylock.from_source())
    if source:
        yield f"# Built where they are installed, since they have no wheel for it: {source}"
    for package in pylock.packages:
        if package.name not in alone:
            yield from package_lines(package)
    for one in pylock.alone:
        yield f"# {one.name} comes last, as if installed alone: no set fits it. {one.why}"
        yield from (
            line for package in pylock.packages if package.name == one.name for line in package_lines(package)
        )


def package_lines(package: LockedPackage) -> Iterator[str]:
    """Yield the lines of one package: its version and hashes."""
    hashes = sorted({file.sha256 for file in package.files})
    yield f"{package.name}=={package.version} \\"
    for one in hashes[:-1]:
        yield f"    --hash=sha256:{one} \\"
    yield f"    --hash=sha256:{hashes[-1]}"
