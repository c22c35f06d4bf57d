"""Have a trainer's own code judge the values of its configuration, as it does before Ray starts.

The training interpreter runs it: `python npu_rl_probe.py '{"code": ..., "byte_code": ..., "folder": ..., "config": ...,
"overrides": [...]}'`. With "function", "package.module.name", that function alone is called; "plain", a mapping, is the
configuration of a trainer without Hydra. The output is one line of JSON: {"raised": [{"key", "type", "message",
"where"}, ...], "skipped": {what: why}}, or {"unrun": why}. "key" is what was judged; empty for the whole.

Of a function's own module only the statements that define the names it uses are executed, and of the tree's packages no
`__init__.py` as a whole, since those import every worker, and with them the engine and the devices' packages.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "npu-rl-probed:"
_PACKAGES = ("hydra", "torch", "tensordict", "transformers", "ray")  # of the environment, which verl imports
_A, _R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_CORE = "verl.trainer.ppo.core_algos"
_ENGINE = f"{_R}.engine_kwargs.vllm."
# which verl passes to vLLM under the same names (verl/workers/rollout/vllm_rollout/vllm_async_server.py@v0.8.0)
_REGISTERED = re.compile(rb"""@register_model_loader\(\s*["'](\w+)""")
_TO_VLLM = [f"{_R}.{name}" for name in ("dtype", "load_format", "logprobs_mode", "scheduling_policy")]


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output for one request."""
    code = Path(request["code"])
    if "function" not in request:
        sys.dont_write_bytecode, written = True, sys.dont_write_bytecode  # they may import what the tree has
        for package in _PACKAGES:  # before the prefix: their own byte code, which takes 14 s to make anew
            with contextlib.suppress(Exception):
                importlib.import_module(package)
        sys.dont_write_bytecode = written
    sys.pycache_prefix = request["byte_code"]
    config = request.get("plain")
    if config is None:
        compose: Any = importlib.import_module("npu_rl_hydra_compose")
        try:
            config = compose.composed(request["folder"], request["config"], request["overrides"])
        except ImportError as error:
            return {"unrun": f"it has no {error.name or error}"}
        except Exception as error:  # noqa: BLE001  the command that runs the trainer reports it in full
            return {"unrun": f"Hydra refuses the configuration: {_first_line(error)}"}
    if "function" in request:
        sys.meta_path.insert(0, LazyPackages(code))
        checks: list[tuple[Any, ...]] = [("", lambda: load_name(code, request["function"])(config))]
    else:
        try:
            given = [one.lstrip("+").partition("=")[0] for one in request["overrides"]]
            checks = [*_checks_of_verl(config, given), *_checks_of_vllm(config, given, code)]
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever an import of the trainer raises
            return {"unrun": f"{_first_line(error)}{_at(error, code)}"}
    raised, skipped = [], {}
    for key, check, *values in checks:
        try:
            check(*values)
        except ImportError as error:
            skipped[key] = f"{_first_line(error)}{_at(error, code)}"
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it raises, the trainer would end by it
            found = {"key": key, "type": type(error).__name__, "message": _first_line(error)}
            raised.append(found | {"where": _place(error, code)})
    return {"raised": raised, "skipped": skipped}


def _checks_of_verl(config: Any, given: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield what verl does with a configuration before it trains: the key or section judged, function, arguments.

    Of the sections with a `_target_` only those that its workers instantiate as they are: `ref` gets values of the
    actor first, and a reward manager is made from its section by a function (verl/workers/engine_workers.py@7aed6b2).
    """
    import torch
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    algorithms: Any = importlib.import_module(_CORE)
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        yield next((key for key in given if not _resolves(config, key)), ""), _raise, error
        return
    settings = importlib.import_module("verl.utils.config")
    build = getattr(settings, "omega_conf_to_dataclass", None)
    for section in (_A, _R, f"{_R}.checkpoint_engine"):
        if build and OmegaConf.select(config, f"{section}._target_"):
            yield section, build, OmegaConf.select(config, section)
    if hasattr(settings, "validate_config"):
        yield "", _validate, settings.validate_config, config
    mask = torch.ones(1, 2)
    getters: Mapping[str, Callable[[Any], object] | None] = {
        "algorithm.adv_estimator": getattr(algorithms, "get_adv_estimator_fn", None),
        f"{_A}.policy_loss.loss_mode": getattr(algorithms, "get_policy_loss_fn", None),
        f"{_A}.loss_agg_mode": lambda mode: algorithms.agg_loss(mask, mask, mode),
        f"{_A}.kl_loss_type": lambda kind: algorithms.kl_penalty(mask, mask, kind),
        "algorithm.kl_penalty": lambda kind: algorithms.kl_penalty(mask, mask, kind),
        "reward.reward_manager.name": lambda name: _reward_manager(config, name),
    }
    for key, get in getters.items():
        value = OmegaConf.select(config, key)
        if get is not None and value not in (
            None,
            "vanilla",
        ):  # older verl has that loss outside of the registry
            yield key, get, value


def _checks_of_vllm(config: Any, given: Sequence[str], code: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of vLLM that are set, each with the function that judges it by their dataclass."""
    from omegaconf import OmegaConf

    keys = [key for key in given if key in _TO_VLLM or key.startswith(_ENGINE)]
    if not keys or OmegaConf.select(config, f"{_R}.name") != "vllm":
        return
    os.environ["VLLM_PLUGINS"] = "none"  # a platform's own needs its devices
    try:
        module: Any = importlib.import_module("vllm.engine.arg_utils")
        hints = typing.get_type_hints(module.AsyncEngineArgs)
    except Exception as error:  # noqa: BLE001  a package that is missing, or of another version
        yield "vLLM's arguments", _raise, ImportError(_first_line(error)).with_traceback(error.__traceback__)
        return
    for key in keys:
        name, *inner = key.removeprefix(f"{_R}.").removeprefix("engine_kwargs.vllm.").split(".")
        value = OmegaConf.to_container(OmegaConf.create({"it": OmegaConf.select(config, key)}))["it"]
        if name == "load_format":
            yield key, _judge_load_format, code, value
        elif value is not None and name in hints:
            hint = hints[name]
            kinds = (hint, *typing.get_args(hint))
            nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
            if nested is not None:
                fields = json.loads(value) if isinstance(value, str) and not inner else None
                for part in reversed(inner):
                    value = {part: value}
                for field, one in (fields or value).items():
                    yield key, _judge_field, nested, field, one
            elif str not in kinds and any(typing.get_origin(kind) is typing.Literal for kind in kinds):
                yield key, _judge_value, hint, value


def _judge_value(hint: Any, value: Any) -> None:
    """Raise ValueError with pydantic's words if a type doesn't take a value."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _judge_field(nested: Any, name: str, value: Any) -> None:
    """Raise ValueError if a field of a configuration's class doesn't take a value.

    A class that can't be made at all on this machine judges nothing.
    """
    try:
        _judge_value(nested, {})
    except Exception as error:
        raise ImportError(_first_line(error)) from error
    try:
        _judge_value(nested, {name: value})
    except KeyError as error:  # of vLLM's own look-up in an enumeration
        members = getattr(typing.get_type_hints(nested)[name], "__members__", ())
        raise ValueError(f"{value!r} is not one of {', '.join(members)}") from error


def _judge_load_format(code: Path, value: Any) -> None:
    """Raise ValueError unless vLLM or a plugin in the tree has the loader.

    verl up to 0.7 shortens what begins with "dummy" (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@v0.5.0).
    """
    try:
        formats = typing.get_args(load_name(code, "vllm.model_executor.model_loader.LoadFormats"))
    except (AttributeError, OSError) as error:  # vLLM before 0.10
        raise ImportError("this vLLM has no list of its loaders") from error
    texts = (path.read_bytes() for path in code.glob("vllm_*/**/*.py"))
    known = {*formats, *(name.decode() for text in texts for name in _REGISTERED.findall(text))}
    if (name := str(value).lower()) not in known and not name.startswith("dummy_"):
        raise ValueError(f"{value!r} is not one of {', '.join(sorted(known))}")


def _raise(error: Exception) -> None:
    raise error


def _resolves(config: Any, key: str) -> bool:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return False
    return True


def _validate(function: Callable[..., object], config: Any) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy

    reference = need_reference_policy(config)
    function(config=config, use_reference_policy=reference, use_critic=need_critic(config))


def _reward_manager(config: Any, name: str) -> None:
    """Look a reward manager up; a module of the user's own may register others."""
    from omegaconf import OmegaConf

    own = (
        "custom_reward_function.path",
        "reward.custom_reward_function.path",
        "reward.reward_manager.module.path",
    )
    if not any(OmegaConf.select(config, key) for key in own):
        importlib.import_module("verl.experimental.reward_loop.reward_manager").get_reward_manager_cls(name)


def load_name(code: Path, dotted: str) -> Any:
    """Return a function or type of the tree, executing only the statements of its module that it needs."""
    name, _, wanted = dotted.rpartition(".")
    file = code.joinpath(*name.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    tree = ast.parse(file.read_bytes(), str(file))  # of a proven tree, whose code runs next
    module = types.ModuleType(name)
    module.__file__ = str(file)
    module.__package__ = name.rpartition(".")[0]
    sys.modules.setdefault(name, module)
    body = list(_needed(tree.body, wanted))
    exec(compile(ast.Module(body, []), str(file), "exec"), module.__dict__)
    return getattr(module, wanted)


def _needed(body: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Yield the statements that define a name and, recursively, what they use; imports are reduced to used names."""
    wanted, used = {name}, {name}
    kept: set[int] = set()
    while wanted:
        names, wanted = wanted, set()
        for index, statement in enumerate(body):
            if index not in kept and _defined(statement) & names:
                kept.add(index)
                wanted |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - used
        used |= wanted
    for index, statement in enumerate(body):
        if index in kept:
            yield _trimmed(statement, used)
        elif isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            yield statement


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module's top level defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(item.asname or item.name).partition(".")[0] for item in statement.names}
    if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For)):
        inner = [node for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement]
        return {name for node in inner for name in _defined(node)}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _trimmed(statement: ast.stmt, used: set[str]) -> ast.stmt:
    """Reduce an import to the names that are used; other statements are returned unchanged."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        names = [item for item in statement.names if (item.asname or item.name).partition(".")[0] in used]
        trimmed = (
            ast.Import(names)
            if isinstance(statement, ast.Import)
            else ast.ImportFrom(statement.module, names, statement.level)
        )
        return ast.copy_location(trimmed, statement)
    return statement


class LazyPackages(importlib.abc.MetaPathFinder):
    """Finder of a tree's packages whose `__init__.py` is executed import by import, on demand."""

    def __init__(self, code: Path) -> None:
        self._code = str(code)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a package of the tree; None leaves a module to the other finders."""
        del target
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not spec.submodule_search_locations or not spec.origin:
            return None
        if not spec.origin.startswith(self._code + "/"):
            return None
        spec.loader = _LazyPackage(name, spec.origin)
        return spec


class _LazyPackage(importlib.machinery.SourceFileLoader):
    """Loader of a package without executing its `__init__.py`, until one of its names is needed."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the package a `__getattr__` that executes the one import that defines a name."""
        body = ast.parse(Path(self.path).read_bytes(), self.path).body
        imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]

        def get(name: str) -> object:
            for node in imports:
                if any((item.asname or item.name) == name for item in node.names):
                    one = ast.Module([_trimmed(node, {name})], [])
                    exec(compile(one, self.path, "exec"), module.__dict__)
                    return module.__dict__[name]
            if name.startswith("__"):
                raise AttributeError(name)
            if importlib.machinery.PathFinder.find_spec(f"{module.__name__}.{name}", module.__path__):
                return importlib.import_module(f"{module.__name__}.{name}")
            del module.__dict__["__getattr__"]  # something else defines it: the whole file has to be executed
            importlib.machinery.SourceFileLoader.exec_module(self, module)
            return getattr(module, name)

        module.__dict__["__getattr__"] = get


def _first_line(error: BaseException) -> str:
    """Return the message of an error, or of what Hydra met when it called a class."""
    if type(error).__name__ == "InstantiationException" and error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _at(error: BaseException, code: Path) -> str:
    place = _place(error, code)
    return f" ({place})" if place else ""


def _place(error: BaseException, code: Path) -> str:
    """Return file:line of the innermost frame within the tree."""
    if type(error).__name__ == "InstantiationException" and error.__cause__ is not None:
        error = error.__cause__
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{code}/")
    ]
    if not frames:
        return ""
    return f"{Path(frames[-1].filename).relative_to(code).as_posix()}:{frames[-1].lineno}"


if __name__ == "__main__":
    gc.disable()
    answer = main(json.loads(sys.argv[1]))
    print(MARK + json.dumps(answer, default=str))
