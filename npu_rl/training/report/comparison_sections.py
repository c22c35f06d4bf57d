"""Report sections that compare a run with published figures or with another run."""

from __future__ import annotations

from npu_rl.training.browse.run_comparison import RunComparison
from npu_rl.training.report.gather_report import GatheredRun
from npu_rl.training.report.markup import Markup, joined, section, table, tag
from npu_rl.training.report.published_rows import PER_CARD, PER_DIE, PublishedRow, published_rows
from npu_rl.training.report.report_sections import comparable_means, number_or_dash

_NAMES = {
    "critic/rewards/mean": "reward",
    "prompt_length/mean": "mean prompt length, tokens",
    "response_length/mean": "mean response length, tokens",
    "actor/entropy": "entropy",
    "actor/kl_loss": "KL to the reference",
    "training/rollout_probs_diff_mean": "rollout-trainer difference",
    "actor/grad_norm": "gradient norm",
    "timing_s/step": "step, s",
    "timing_s/gen": "gen, s",
    "timing_s/reshard": "reshard (a part of gen), s",
    "timing_s/reward": "reward, s",
    "timing_s/old_log_prob": "old_log_prob, s",
    "timing_s/ref": "ref, s",
    "timing_s/update_actor": "update_actor, s",
    PER_DIE: "tokens per second and die, as verl counts",
    PER_CARD: "tokens per second and card",
    "perf/max_memory_allocated_gb": "peak memory of a device, GiB",
}


def published_section(run: GatheredRun) -> Markup:
    """Return the published figures of the run's recipe beside its own."""
    recipe, extended = run.recorded.recipe.name, run.recorded.recipe.extended
    rows = published_rows(recipe, extended)
    if not rows:
        text = f"No figures have been published for the recipe {recipe}."
        return section("Published figures", "published", tag("p", text, class_="soft"))
    own = any(recipe in row.recipes for row in rows)
    base = next((name for name in extended if name in rows[0].recipes), "")
    note = (
        []
        if own
        else [tag("p", f"From the recipe {base}, which {recipe} extends: they may differ.", class_="soft")]
    )
    return section("Published figures", "published", *note, *(_published(run, row) for row in rows))


def _published(run: GatheredRun, row: PublishedRow) -> Markup:
    of_step, recent = comparable_means(run, row.step)
    named = row.step is not None
    rows = [
        (
            label,
            number_or_dash(row.values.get(key)),
            *([number_or_dash(of_step.get(key))] if named else []),
            number_or_dash(recent.get(key)),
        )
        for key, label in _NAMES.items()
        if key in row.values
    ]
    ours = [f"this run, step {row.step}"] if named else []
    heads = ("figure", "published", *ours, "this run, mean of its last 10 steps")
    where = f"{row.devices}. {row.note} Source: {row.source}."
    logged = named and not of_step
    missing = [tag("p", f"This run has not logged step {row.step}.", class_="soft")] if logged else []
    return joined(
        [tag("h3", row.title), table(heads, rows, class_="numbers"), *missing, tag("p", where, class_="soft")]
    )


def distinct_names(run: GatheredRun, other: GatheredRun) -> tuple[str, str]:
    """Return the names of two runs; of the same one in two workspaces with the folders that differ."""
    if run.name != other.name:
        return run.name, other.name
    folders = (one.recorded.folder.resolve().parts[::-1] for one in (run, other))
    first, second = next((pair for pair in zip(*folders, strict=False) if pair[0] != pair[1]), ("", ""))
    if first == second:  # a run against itself
        return run.name, other.name
    return f"{run.name} ({run.masked(first)})", f"{other.name} ({other.masked(second)})"


def against_section(run: GatheredRun, other: GatheredRun) -> Markup:
    """Return the figures of two runs side by side, and the differences between the runs."""
    own_name, other_name = distinct_names(run, other)
    (_, ours), (_, theirs) = comparable_means(run, None), comparable_means(other, None)
    figures = [
        ("state", run.state, other.state),
        ("last step", str(run.recorded.steps), str(other.recorded.steps)),
        *(
            (label, number_or_dash(ours.get(key)), number_or_dash(theirs.get(key)))
            for key, label in _NAMES.items()
            if key in ours or key in theirs
        ),
    ]
    heads = ("", own_name, other_name)
    differing = _differences(run, other)
    content = (
        table(("what", own_name, other_name), differing, class_="runs")
        if differing
        else tag("p", "Nothing of recipe, tree, packages and variables.", class_="soft")
    )
    return section(
        f"Against {other_name}",
        "against",
        tag("p", "Means of the last 10 steps. Its curves are dashed in the charts.", class_="soft"),
        tag("p", f"Its record is {other.masked(str(other.recorded.folder))}.", class_="soft"),
        table(heads, figures, class_="numbers runs"),
        tag("h3", "What differs"),
        content,
    )


def _differences(run: GatheredRun, other: GatheredRun) -> list[tuple[str, str, str]]:
    """Return the differences, with each run's value."""
    compared = RunComparison(run.recorded, other.recorded)
    values = [
        (f"{kind}: {one.name}", one.first, one.second)
        for kind, found in compared.values.items()
        for one in found
    ]
    values.append(("overrides", " ".join(run.overrides), " ".join(other.overrides)))
    stack = compared.stack
    if stack is not None:
        values += [(f"{name}: pin", before, after) for name, before, after, _ in stack.pin_rows()]
        values += [
            (f"{of}: {what} {change}", before, after)
            for of, what, change, before, after in stack.value_rows()
        ]
    values += [(f"not compared: {text}", None, None) for text in compared.not_compared]
    masked = [(name, run.masked(first or "-"), run.masked(second or "-")) for name, first, second in values]
    return [row for row in masked if row[1] != row[2] or row[0].startswith("not compared")]
