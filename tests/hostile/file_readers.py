"""Every module of npu_rl that opens, reads or parses a file: which, who wrote it, and what bounds that.

A stranger's file comes with a download, a checkpoint, a workspace, a record or a manifest of somebody else. Its reader
names the kind of the mutator (test_mutations.py, test_file_mutations.py) that breaks such files. A call that is none of
npu_rl/common/bounded.py and its like (`file_calls.BOUNDED`) has a reason.
"""

from __future__ import annotations

from typing import NamedTuple

OWN, USER, STRANGER = "npu-rl's own", "the user's", "a stranger's"

RUN = "runs in the training interpreter, over a tree that was proven: starting it is the act of trust"
READ_BEFORE = (
    "reads only files of which npu-rl has read every row before, within the bounds of bounded_parquet.py"
)
OF_THIS_RUN = "lies in a folder of mode 700 that npu-rl has made for this attempt or process"
PRINTED = "parses what a process that npu-rl started was given or printed"
PACKAGED = "lies in the installed package"
INSTALLED = "is in the environment that the user installs into, and that Python itself reads"
WRITES = "opens it to write, to lock or to sync it, never through a link"
SCREENED = "parses text of a bounded size, and catches what deep nesting raises"


class Reader(NamedTuple):
    """What a module reads.

    Attributes:
        file: The kind of file.
        by: Who may have written it.
        kind: The kind of mutated input that reaches it; of strangers' files always.
        why: Of calls that are not bounded by themselves.
    """

    file: str
    by: str
    kind: str = ""
    why: str = ""


R = Reader
READERS = {
    "common/bounded.py": R("any", STRANGER, "a_killed_record", "is what bounds the others"),
    "common/byte_code.py": R(
        "the mark of a folder of byte code", OWN, "", "in a cache that only its user can write"
    ),
    "cli/next_steps.py": R("the bundled recipes", OWN, "", PACKAGED),
    "cli/patches.py": R("a bundled patch", OWN, "", PACKAGED),
    "cli/streams.py": R("standard input and output", OWN, "", "opens the three streams again, in UTF-8"),
    "stack/bundles/bundle_file.py": R(
        "a bundle", STRANGER, "a_made_bundle", "reads a member's content in chunks, as it is stored"
    ),
    "stack/bundles/bundled_packages.py": R("where npu-rl was installed from", OWN, "", PACKAGED),
    "stack/bundles/open_bundle.py": R("a bundle's patches", STRANGER, "a_made_bundle"),
    "stack/compose/git_trees.py": R("objects of the store", OWN, "", WRITES),
    "stack/compose/patch_texts.py": R("a patch beside a manifest", STRANGER, "a_patch"),
    "stack/compose/runtime_tree.py": R("the runtime's modules", OWN, "", PACKAGED),
    "common/yaml_documents/extends_chain.py": R("a manifest or recipe", STRANGER, "a_manifest"),
    "common/yaml_documents/file_digests.py": R("a manifest or recipe", STRANGER, "a_manifest"),
    "common/yaml_documents/yaml_reader.py": R(
        "YAML",
        STRANGER,
        "a_manifest",
        "bounds the depth of its nodes while they are composed, then their number",
    ),
    "common/user_settings.py": R("config.yaml", USER, "a_configuration"),
    "data/data_check/mindspeed_rl_files.py": R("an index of tokens", STRANGER, "packed_files"),
    "data/data_check/packed_files.py": R("an index of tokens", STRANGER, "packed_files"),
    "data/data_check/prompt_lengths.py": R("a worker's answer", OWN, "", PRINTED),
    "data/data_check/reward_trial.py": R("a worker's answer", OWN, "", PRINTED),
    "data/datasets/bounded_parquet.py": R(
        "Parquet", STRANGER, "parquet_rows", "bounds what a file unpacks to before it is unpacked"
    ),
    "data/datasets/input_rows.py": R("rows", STRANGER, "parquet_rows"),
    "data/datasets/json_rows.py": R(
        "JSON rows", STRANGER, "json_rows", "bounds each row, and catches RecursionError"
    ),
    "data/datasets/staged_folder.py": R("prepared.json", STRANGER, "a_prepared_folder"),
    "data/datasets/trainer_files.py": R(
        "Parquet", STRANGER, "a_trainers_parquet", "parses JSON that it has just written"
    ),
    "common/disk.py": R("locks and temporary files", OWN, "", WRITES),
    "data/downloads/verify_download.py": R("a download", STRANGER, "a_download"),
    "recipes/faults/catalogue_files.py": R("the catalogue of faults", OWN, "", PACKAGED),
    "recipes/faults/fault.py": R("catalogue.json", OWN),
    "recipes/faults/fault_counts.py": R("counts of faults in the cache", OWN),
    "recipes/environment/environment_reads.py": R("Python of a tree", STRANGER, "a_source_tree"),
    "recipes/judgement/prepared_data.py": R("prepared.json", STRANGER, "a_trainers_parquet"),
    "recipes/judgement/reward_function.py": R("Python of a tree", STRANGER, "a_source_tree"),
    "stack/lock/lock_model.py": R("a lock", STRANGER, "a_locks_bytes"),
    "stack/lock/verification_record.py": R("NAME.verified.json", STRANGER, "a_verification_record"),
    "training/monitor/explain_failure.py": R("the logs of a run", STRANGER, "a_killed_record"),
    "training/monitor/phase_clock.py": R("phases.jsonl of the run that it follows", OWN),
    "training/monitor/metrics.py": R(
        "metrics.jsonl", STRANGER, "a_killed_record", "appends to that of the attempt it began"
    ),
    "training/monitor/tail.py": R("driver.log", STRANGER, "a_killed_record"),
    "stack/lint/patch_targets.py": R("a file to be patched", STRANGER, "a_linted_patch"),
    "stack/lint/python_names.py": R("Python of a tree", STRANGER, "a_linted_patch"),
    "stack/patches/series.py": R("a patchset", STRANGER, "a_series"),
    "recipes/recipe/copy_recipe.py": R(
        "a schema beside the new recipe", USER, "", "else reads what is bundled"
    ),
    "training/record/attempt.py": R("driver.json, end.json", STRANGER, "a_killed_record"),
    "training/record/saved_checkpoints/checkpoint_folders.py": R(
        "the tracker of checkpoints", STRANGER, "checkpoint_folders"
    ),
    "training/record/lost_nodes.py": R("lost-nodes.json", STRANGER, "a_killed_record"),
    "training/record/named_paths.py": R("recipes and commands of other runs", STRANGER, "a_killed_record"),
    "training/record/record_masking.py": R(
        "the logs of a run", STRANGER, "a_killed_record", "reads regular files in blocks"
    ),
    "training/record/recorded_attempt.py": R(
        "command.json, end.json, nodes.json, alarms.jsonl", STRANGER, "a_killed_record"
    ),
    "training/record/recorded_run.py": R("recipe.yaml", STRANGER, "a_killed_record"),
    "training/record/remove_run.py": R("recipes and commands of other runs", STRANGER, "a_killed_record"),
    "training/record/run_lock.py": R("the lock of a run", STRANGER, "a_killed_record", WRITES),
    "training/record/run_marks.py": R("command.json", STRANGER, "a_killed_record"),
    "training/record/run_record.py": R("run.json, command.json", STRANGER, "a_killed_record"),
    "training/record/saved_checkpoints/saved_steps.py": R(
        "files of torch.save, .metadata",
        STRANGER,
        "checkpoint_folders",
        "the archive's list of entries is bounded",
    ),
    "training/record/samples.py": R("samples/STEP.jsonl", STRANGER, "a_killed_record"),
    "training/record/settle_killed_run.py": R(
        "command.json, host.json, recipe.yaml", STRANGER, "a_killed_record"
    ),
    "training/record/temporary_folders.py": R(
        "the mark of a folder in /tmp", OWN, "", "64 bytes without waiting, in a folder of this user's"
    ),
    "training/report/published_rows.py": R("published_rows.json", OWN),
    "training/report/report_page.py": R("scripts and styles of the page", OWN, "", PACKAGED),
    "training/report/report_samples.py": R("the samples of a run", STRANGER, "a_reported_run"),
    "training/record/worker_logs.py": R("logs of Ray in that folder", OWN),
    "rehearsal/child_process.py": R("a child's answers", OWN, "", PRINTED),
    "rehearsal/run_differences/device_branches.py": R("the tree's modules", STRANGER, "a_source_tree"),
    "rehearsal/run_differences/differences.py": R("names of imported files", OWN),
    "rehearsal/made_checkpoint.py": R("the package's modules", OWN, "", PACKAGED),
    "rehearsal/executed_modules.py": R("the tree's modules", STRANGER, "a_source_tree"),
    "rehearsal/import_check/changed_places.py": R("the tree's modules", STRANGER, "a_source_tree"),
    "rehearsal/import_check/patching_modules.py": R("the tree's modules", STRANGER, "a_source_tree"),
    "training/host/workspace_environment.py": R("run.json, a lock of packages", STRANGER, "a_killed_record"),
    "workspace/builds/build_components.py": R(
        "the log of a build and the sources that it copies",
        OWN,
        "",
        "the log lies in a folder that it has made; the sources were proven before, and links are not followed",
    ),
    "workspace/products/built_products.py": R("a product of a build", STRANGER, "a_receipt"),
    "rehearsal/level_imports.py": R("NAME.imports.yaml", USER),
    "rehearsal/training_checks/noise.py": R("what vLLM's stand-ins recorded", OWN),
    "rehearsal/patch_hooks.py": R("counts of used patches", OWN),
    "rehearsal/rehearse.py": R("a trainer's script", USER),
    "rehearsal/training_checks/weight_syncs.py": R("what the check of weight syncs wrote", OWN),
    "stack/installation/target_python.py": R("what an interpreter prints", USER),
    "stack/installation/unfinished.py": R("the mark of an unfinished installation", OWN),
    "stack/pylocks/committed_pylock.py": R("uv's reason beside a manifest", STRANGER, "a_pylock"),
    "stack/pylocks/compile_pylock.py": R("a lock of packages that uv printed", OWN),
    "stack/pylocks/pylock_file.py": R("a lock of packages beside a manifest", STRANGER, "a_pylock"),
    "stack/requirements/bound_lines.py": R("NAME.bounds.json", STRANGER, "lines_of_bounds"),
    "stack/requirements/project_table.py": R("pyproject.toml of a component", STRANGER, "declaring_files"),
    "stack/requirements/setup_script.py": R("setup.py of a component", STRANGER, "declaring_files"),
    "runtime/deepscaler/pool.py": R("a worker's answer", OWN, "", PRINTED),
    "runtime/deepscaler/workers.py": R("a worker's task", OWN, "", PRINTED),
    "runtime/optimizer_resume.py": R("a checkpoint's steps", USER, "", RUN),
    "runtime/rollout_dp_groups/address.py": R("/proc", OWN, "", "the kernel's"),
    "runtime/used.py": R("counts of used patches", OWN, "", WRITES),
    "recipes/sizing/model_config.py": R("a model's config.json", STRANGER, "a_model_configuration"),
    "stack/sources/pip_config.py": R(
        "pip.conf", USER, "a_pip_configuration", "parses the text that pip itself would"
    ),
    "stack/sources/pypi.py": R("a page of a package index", STRANGER, "an_index_page"),
    "stack/sources/sdist.py": R("an sdist", STRANGER, "an_sdist", "bounds the bytes that it unpacks to"),
    "training/injected/npu_rl_driver.py": R("what the run is told", OWN, "", RUN),
    "training/injected/npu_rl_make_tiny.py": R("the model that it makes", OWN, "", RUN),
    "training/injected/npu_rl_mindspeed_rl_data.py": R("Python of the tree", STRANGER, "", RUN),
    "training/injected/npu_rl_rehearsal/same_code.py": R("Python of the tree", STRANGER, "", RUN),
    "training/host/machines.py": R("machines.yaml", OWN),
    "training/host/training_python.py": R("packages of an interpreter", OWN),
    "training/injected/npu_rl_host.py": R(
        "version files of a host, /proc",
        USER,
        "",
        "reads 256 KiB of each at most, and catches RecursionError",
    ),
    "training/injected/npu_rl_lost_nodes.py": R("nodes.json of this attempt", OWN, "", OF_THIS_RUN),
    "training/injected/npu_rl_stack_dump.py": R(
        "files of /proc, and what processes of the run write", OWN, "", "reads at most 1 MiB of each"
    ),
    "training/injected/npu_rl_packages.py": R(
        "_build_info.py of vllm_ascend", USER, "", "reads 64 KiB at most"
    ),
    "training/injected/npu_rl_node.py": R("packages and logs of a node", OWN, "", RUN),
    "training/injected/npu_rl_nodes.py": R("nodes.json of this attempt", OWN, "", OF_THIS_RUN),
    "training/injected/npu_rl_prompt_lengths.py": R("prepared Parquet", USER, "", READ_BEFORE),
    "training/injected/npu_rl_rehearsal/__main__.py": R("its task", OWN, "", OF_THIS_RUN),
    "training/injected/npu_rl_rehearsal/forks.py": R("a child's answer", OWN, "", RUN),
    "training/injected/npu_rl_rehearsal/mindspeed_rl_arguments.py": R("Hydra files", STRANGER, "", RUN),
    "training/injected/npu_rl_rehearsal/trainer_arguments.py": R("Hydra files", STRANGER, "", RUN),
    "training/injected/npu_rl_hydra_compose.py": R("its task", OWN, "", RUN),
    "training/injected/npu_rl_standins/used.py": R("counts of used stand-ins", OWN, "", WRITES),
    "training/injected/npu_rl_standins/seed.py": R("states of a generator", OWN, "", OF_THIS_RUN),
    "training/injected/npu_rl_try_reward.py": R("its task", OWN, "", OF_THIS_RUN),
    "training/injected/npu_rl_validate.py": R("Python of the tree", STRANGER, "", RUN),
    "training/injected/sitecustomize.py": R("an environment variable", OWN, "", RUN),
    "training/standins/npu/torch_npu/memory.py": R("/proc", OWN, "", RUN),
    "stack/store.py": R("units of the store", OWN),
    "weights/tensors/npu_rl_tensors/cast.py": R("safetensors shards", STRANGER, "a_cast_shard"),
    "weights/tensors/npu_rl_tensors/conversion/tasks.py": R("its task", OWN, "", PRINTED),
    "weights/tensors/npu_rl_tensors/conversion/write_checkpoint.py": R(
        "lists of tensors that it has written", OWN
    ),
    "weights/tensors/npu_rl_tensors/formats/legacy_checkpoint.py": R(
        "a tracker", STRANGER, "legacy_trackers"
    ),
    "weights/tensors/npu_rl_tensors/formats/restricted_pickle.py": R(
        "pickles", STRANGER, "dist_metadata_files", "every opcode is looked at before"
    ),
    "weights/tensors/npu_rl_tensors/formats/tensor_views.py": R("tensors", STRANGER, "dist_metadata_files"),
    "weights/tensors/npu_rl_tensors/formats/read_torch_dist.py": R(
        ".metadata", STRANGER, "dist_metadata_files"
    ),
    "weights/tensors/npu_rl_tensors/formats/torch_files.py": R(
        "files of torch.save", STRANGER, "dist_metadata_files", "each read of the archive's list is bounded"
    ),
    "weights/tensors/npu_rl_tensors/hf_checkpoint.py": R(
        "config.json, an index", STRANGER, "safetensors_headers"
    ),
    "weights/tensors/npu_rl_tensors/ray_driver.py": R("its task; a host's probe", OWN, "", PRINTED),
    "weights/tensors/npu_rl_tensors/ray_host.py": R("the driver's probe", OWN, "", PRINTED),
    "weights/tensors/npu_rl_tensors/regular_file.py": R(
        "any", STRANGER, "safetensors_headers", "is what bounds the others"
    ),
    "weights/tensors/npu_rl_tensors/safetensors_file.py": R(
        "a header", STRANGER, "safetensors_headers", SCREENED
    ),
    "weights/tensors/npu_rl_tensors/worker.py": R("its task", OWN, "", PRINTED),
    "recipes/trainer_code/adaptation_switches.py": R("Python of a tree, patches", STRANGER, "a_source_tree"),
    "recipes/trainer_code/answer_cache.py": R(
        "answers in the cache", OWN, "", "parses what it has just written"
    ),
    "recipes/trainer_code/citations.py": R("Python of a tree", STRANGER, "a_source_tree"),
    "recipes/trainer_code/hydra_entry.py": R("Python of a tree", STRANGER, "a_hydra_file"),
    "recipes/trainer_code/hydra_yaml.py": R("Hydra files of a tree", STRANGER, "a_hydra_file", SCREENED),
    "recipes/trainer_code/source_files.py": R("files of a tree", STRANGER, "a_source_tree"),
    "recipes/trainer_code/source_index.py": R("Python of a tree", STRANGER, "a_source_tree"),
    "recipes/trainer_keys/engine_arguments.py": R("Python of a tree", STRANGER, "a_source_tree"),
    "recipes/trainer_keys/transformer_keys.py": R("Python of a tree", STRANGER, "a_source_tree"),
    "training/run/allow_drift.py": R("a changed file of a workspace", STRANGER, "a_drifted_file"),
    "common/host_facts.py": R("/etc, /proc, the driver's version", OWN, "", "the machine's own"),
    "training/run/hydra_compose.py": R("a worker's answer", OWN, "", PRINTED),
    "training/run/interpreter.py": R("a worker's answer", OWN, "", PRINTED),
    "training/run/begin_run.py": R("the proven lock", OWN),
    "training/run/hang_stacks.py": R(
        "the stacks that its collector wrote", OWN, "", "else parses its own variable"
    ),
    "training/run/node_reports.py": R(
        "nodes.json", STRANGER, "a_killed_record", "else parses its own variable"
    ),
    "training/run/made_folders.py": R("a model or checkpoint of its own", OWN),
    "training/run/tiny_model.py": R("the package's modules", OWN, "", PACKAGED),
    "training/run/train.py": R("the model it made", OWN),
    "recipes/judgement/trainer_validation.py": R("a worker's answer", OWN, "", PRINTED),
    "training/run/witness_run.py": R("a worker's answer", OWN, "", PRINTED),
    "workspace/verification/verify.py": R("a changed file of a workspace", STRANGER, "a_receipt"),
    "weights/checkpoints/output_journal.py": R("a journal", STRANGER, "an_output_journal", WRITES),
    "training/run/export_run.py": R("lock.json of a record", STRANGER, "a_killed_record"),
    "weights/checkpoints/hash_list.py": R("a list of hashes, and what it lists", STRANGER, "a_hash_list"),
    "weights/checkpoints/other_files.py": R("files beside the weights", STRANGER, "safetensors_headers"),
    "weights/checkpoints/output_folder.py": R("a finished file of an output", STRANGER, "an_output_journal"),
    "weights/checkpoints/ray_workers.py": R("a worker's answer", OWN, "", PRINTED),
    "recipes/checkpoints/weight_commands.py": R("config.json", STRANGER, "safetensors_headers"),
    "weights/checkpoints/worker_pool.py": R("a worker's answer", OWN, "", PRINTED),
    "common/user_state.py": R(
        "what this user chose or made",
        OWN,
        "",
        "1 MB of a regular file, in a folder that only its user can write",
    ),
    "common/confined_changes.py": R(
        "files of a workspace", STRANGER, "a_journal", "is what bounds the others"
    ),
    "workspace/export/export_plan.py": R("a patch or series beside a manifest", USER),
    "workspace/export/manifest_entries.py": R("a series beside a manifest", USER),
    "stack/port/locked_patches.py": R("a patch or series beside a manifest", STRANGER, "a_series"),
    "stack/port/port_repository.py": R("git's index of a port", USER, "", "copied, not read"),
    "stack/port/port_state.py": R("the state of a port", USER),
    "stack/patches/version_columns.py": R("patchsets/versions.json", OWN, "", PACKAGED),
    "stack/patches/written_files.py": R("a patch or manifest before it is replaced", USER),
    "workspace/folder/file_check.py": R(
        "files of a workspace",
        STRANGER,
        "a_record_of_stats",
        "hashes regular files in blocks, follows no link",
    ),
    "workspace/folder/laid_files.py": R(
        "packs of a workspace", STRANGER, "a_receipt", "as file_check.py does"
    ),
    "workspace/folder/workspace_paths.py": R("files of a workspace", STRANGER, "a_receipt"),
    "workspace/folder/local_edits.py": R("the ref of a workspace's repository", STRANGER, "a_receipt"),
    "workspace/folder/local_commits.py": R(
        "refs and reflogs of a workspace", STRANGER, "a_receipt", "each file of the copy is bounded"
    ),
    "workspace/folder/materialise.py": R("the repository it has just made", OWN, "", "copies it in blocks"),
    "workspace/folder/receipt.py": R("receipt.json", STRANGER, "a_receipt"),
    "workspace/folder/setup.py": R("files it has just written", OWN, "", WRITES),
    "workspace/folder/swap.py": R("a journal of setup", STRANGER, "a_journal"),
    "workspace/folder/untracked_files.py": R(
        "byte code in a workspace", STRANGER, "a_receipt", "16 bytes of a regular file, no link"
    ),
}
WITNESSES = "recipes/faults/witnesses/"  # scripts over a tree that was proven, each with what it made itself


def readers_of(kind: str) -> set[str]:
    """The modules whose files a kind of the mutator breaks."""
    return {module for module, reader in READERS.items() if reader.kind == kind}
