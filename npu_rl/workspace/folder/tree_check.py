"""Comparison of a workspace's root with its receipt, including the products of builds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.file_check import Advance, Difference, Findings, Stat
from npu_rl.workspace.folder.receipt import Receipt
from npu_rl.workspace.products.built_products import BUILT, built_products, state_on_disk


def _no_progress(count: int) -> None:
    del count


def examine_laid_root(
    home: Path, root: str, receipt: Receipt, known: Mapping[str, Stat], advance: Advance = _no_progress
) -> tuple[Findings, dict[str, str]]:
    """Compare a root like `file_check.examine_root`, including the products that the receipt lists.

    Returns:
        The findings, in which a product as it was built is not drift and another is modified or missing, and the
        state of each product by its path in the workspace. Every byte of a product is read.
    """
    found = file_check.examine_root(home, root, receipt.files[root], known, advance)
    products = [one for one in built_products(receipt.setup).values() if one.root == root]
    if not products:
        return found, {}
    states = {product.path: state_on_disk(home, product) for product in products}
    ours = {product.path_in_root for product in products}
    found.drift = [one for one in found.drift if one.path not in ours]
    found.ignored = {path: what for path, what in found.ignored.items() if path not in ours}
    found.drift += [
        Difference(product.path_in_root, states[product.path])
        for product in products
        if states[product.path] != BUILT
    ]
    found.drift.sort(key=lambda difference: difference.path)
    return found, states
