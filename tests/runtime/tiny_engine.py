"""A vLLM engine in miniature, hand-made: the attributes of vllm.LLM (V1, v0.9.1) that the manual sleep touches.

Real: torch, the Parameters with their weight loaders, the KV cache that answers are computed from. The model is one
attention layer with MLA's two derived halves, one layer of experts and an output, a few kB unless asked for more.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from npu_rl.runtime import kv_cache_reuse

HEADS, RANK, HALF = 2, 6, 4
BLOCK = 4


class UnquantizedMethod:
    """Like vllm-ascend's for experts: it puts new Parameters, without any attribute, over the same memory."""

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.w13_weight = nn.Parameter(layer.w13_weight.data, requires_grad=False)
        layer.w2_weight = nn.Parameter(layer.w2_weight.data, requires_grad=False)


class MovingMethod(UnquantizedMethod):
    def process_weights_after_loading(self, layer: Any) -> None:
        layer.w13_weight.data = layer.w13_weight.data.transpose(1, 2).contiguous().transpose(1, 2)


class Fp8Method:
    pass


class Linear(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns), requires_grad=False)
        self.weight.weight_loader = self.load  # type: ignore[attr-defined]

    def load(self, parameter: nn.Parameter, loaded: torch.Tensor, expert: int | None = None) -> None:
        (parameter.data if expert is None else parameter.data[expert]).copy_(loaded)


class MLA:
    """The attention's `impl`, not a Module. Like vLLM's, its two halves are views of kv_b_proj's memory."""

    def __init__(self, kv_b_proj: Linear) -> None:
        self.kv_b_proj = kv_b_proj
        self.W_UV: torch.Tensor | None = None
        self.W_UK_T: torch.Tensor | None = None
        self.key_cache: torch.Tensor | None = None

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        keys, values = self.kv_b_proj.weight.T.view(RANK, HEADS, 2 * HALF).split([HALF, HALF], dim=-1)
        self.W_UV, self.W_UK_T = values.transpose(0, 1), keys.permute(1, 2, 0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = Linear(HEADS * 2 * HALF, RANK)
        self.impl = MLA(self.kv_b_proj)
        self.kv_cache = [torch.empty(0)]
        self.register_buffer("rotary", torch.arange(RANK) / RANK + 1.0, persistent=False)

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        self.impl.process_weights_after_loading(dtype)

    def forward(self, x: torch.Tensor, block: int) -> torch.Tensor:
        cache = self.kv_cache[0][0]
        cache[block] = (x * self.rotary).mean(0)  # what is read below has been through the cache
        self.impl.key_cache = cache
        latent = cache[block].expand(HEADS, 1, RANK)
        assert self.impl.W_UV is not None and self.impl.W_UK_T is not None
        values = torch.bmm(latent, self.impl.W_UV)
        return torch.bmm(values, self.impl.W_UK_T).sum((0, 1)) + x.mean(0)


class Experts(nn.Module):
    def __init__(self, method: Any, wide: int) -> None:
        super().__init__()
        self.quant_method = method
        self.wide = wide
        self.w13_weight = nn.Parameter(torch.zeros(3, wide, RANK), requires_grad=False)
        self.w2_weight = nn.Parameter(torch.zeros(3, RANK, wide), requires_grad=False)
        self.e_score_correction_bias = nn.Parameter(torch.tensor([0.5, 0.0, 0.0]))

    weight_loader = Linear.load

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.e_score_correction_bias.softmax(0)
        return (
            torch.stack(
                [w2 @ (w13 @ x).relu() for w13, w2 in zip(self.w13_weight, self.w2_weight, strict=True)]
            ).T
            @ weights
        )


class Model(nn.Module):
    def __init__(self, method: Any, wide: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, RANK)
        self.attention = Attention()
        self.experts = Experts(method, wide)
        self.output = Linear(16, RANK)
        self.output.extra = self.output.weight  # a tied weight is one Parameter under two names

    def forward(self, tokens: torch.Tensor, block: int = 1) -> torch.Tensor:
        x = self.attention(self.embed(tokens), block)
        return self.output.weight @ (x + self.experts(x))

    def load_weights(self, weights: Any) -> set[str]:
        """By each Parameter's loader where it has one, an expert at a time, as vLLM's models do."""
        parameters, done = dict(self.named_parameters()), set()
        for name, loaded in weights:
            key, _, expert = name.partition("#")
            loader = getattr(parameters[key], "weight_loader", lambda one, value: one.data.copy_(value))
            loader(parameters[key], loaded, int(expert)) if expert else loader(parameters[key], loaded)
            done.add(key)
        return done


@dataclass
class Config:
    num_blocks: int
    kv_cache_groups: list[Any] = field(default_factory=lambda: [SimpleNamespace(layer_names=["attention"])])


class Runner:
    def __init__(self, vllm_config: Any, model: Model, lines: int) -> None:
        self.vllm_config, self.model, self.lines = vllm_config, model, lines
        self.kv_caches: list[Any] = []
        self.attn_backends: list[str] = []

    def initialize_kv_cache(self, config: Config) -> None:
        assert not self.kv_caches and not self.attn_backends, "initialized already"
        self.attn_backends.append("mla")
        cache = tuple(torch.zeros(config.num_blocks * self.lines, RANK) for _ in range(2))
        self.kv_caches.append(cache)
        self.vllm_config.compilation_config.static_forward_context["attention"].kv_cache = [cache]


class Executor:
    def __init__(self, runner: Runner) -> None:
        self.driver_worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
        self.is_sleeping, self.sleeping_tags = False, set()  # type: ignore[var-annotated]
        self.warm_ups = 0

    def collective_rpc(self, method: str, args: Any = ()) -> None:
        assert method == "initialize_from_config"
        self.driver_worker.worker.model_runner.initialize_kv_cache(args[0][0])

    def initialize_from_config(self, configs: list[Config]) -> None:
        self.collective_rpc("initialize_from_config", args=(configs,))
        self.warm_ups += 1


class Scheduler:
    def __init__(self, blocks: int) -> None:
        self.kv_cache_manager = SimpleNamespace(block_pool=SimpleNamespace(num_gpu_blocks=blocks))
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.prefixes: dict[Any, Any] = {}

    def get_num_unfinished_requests(self) -> int:
        return len(self.waiting) + len(self.running)

    def reset_prefix_cache(self) -> bool:
        self.prefixes.clear()
        return True


class OutputProcessor:
    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def abort_requests(self, ids: list[str]) -> list[str]:
        return [name for name in ids if self.request_states.pop(name, None)]


class Core(SimpleNamespace):
    """scheduler, model_executor, vllm_config."""

    def abort_requests(self, ids: list[str]) -> None:
        for requests in (self.scheduler.waiting, self.scheduler.running):
            requests[:] = [one for one in requests if one.request_id not in ids]


class LLMEngine:
    def __init__(self, core: Any) -> None:
        self.engine_core = SimpleNamespace(engine_core=core)
        self.output_processor = OutputProcessor()

    def add_request(self, tokens: Any) -> None:
        request = SimpleNamespace(request_id=f"{len(self.output_processor.request_states)}", tokens=tokens)
        self.output_processor.request_states[request.request_id] = request
        self.engine_core.engine_core.scheduler.waiting.append(request)

    def step(self) -> torch.Tensor:
        """The last request's logits; a prompt seen before is answered by what was cached for it."""
        core = self.engine_core.engine_core
        request = core.scheduler.waiting.pop()
        core.scheduler.running.append(request)
        tokens = request.tokens
        key = tuple(tokens.tolist())
        if key not in core.scheduler.prefixes:
            core.scheduler.prefixes[key] = core.model_executor.driver_worker.worker.model_runner.model(tokens)
        logits: torch.Tensor = core.scheduler.prefixes[key]
        core.scheduler.running.remove(request)
        del self.output_processor.request_states[request.request_id]
        return logits


class TinyLLM:
    """Made like vllm.LLM, with dummy weights. method: the experts' quant method. wide: rows of an expert's matrix.
    lines: rows of the KV cache per block."""

    def __init__(
        self,
        method: Any = None,
        wide: int = 8,
        lines: int = BLOCK,
        enable_sleep_mode: bool = False,
        blocks: int = 8,
    ):
        torch.manual_seed(0)
        model = Model(method or UnquantizedMethod(), wide)
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(dtype=torch.float32, enable_sleep_mode=enable_sleep_mode),
            compilation_config=SimpleNamespace(
                static_forward_context={"attention": model.attention, "experts": model.experts}
            ),
        )
        executor = Executor(Runner(self.vllm_config, model, lines))
        self.core = Core(vllm_config=self.vllm_config, model_executor=executor, scheduler=Scheduler(blocks))
        self.llm_engine = LLMEngine(self.core)
        load(model, weights(model))
        executor.initialize_from_config(kv_cache_reuse.first(self.core, [Config(blocks)]))
        with torch.no_grad():
            if not isinstance(model.experts.quant_method, MovingMethod):
                model.experts.quant_method.process_weights_after_loading(model.experts)
            model.attention.process_weights_after_loading(torch.float32)

    @property
    def runner(self) -> Runner:
        runner: Runner = self.core.model_executor.driver_worker.worker.model_runner
        return runner

    @property
    def model(self) -> Model:
        return self.runner.model

    def generate(self, tokens: list[int]) -> list[float]:
        """The logits after `tokens`."""
        with torch.no_grad():
            self.llm_engine.add_request(torch.tensor(tokens))
            found: list[float] = self.llm_engine.step().tolist()
        return found

    def sleep(self, level: int = 1) -> None:
        """vLLM's own: on a CPU it does nothing (vllm/v1/worker/cpu_worker.py:68)."""

    def wake_up(self, tags: list[str] | None = None) -> None: ...


def weights(model: Model, seed: int = 1) -> dict[str, torch.Tensor]:
    """Matrices as an actor would send them, one expert at a time; no vector and no buffer."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {
        "embed.weight": (16, RANK),
        "attention.kv_b_proj.weight": (HEADS * 2 * HALF, RANK),
        "output.weight": (16, RANK),
    }
    wide = model.experts.wide
    for expert in range(3):
        sizes |= {f"experts.w13_weight#{expert}": (wide, RANK), f"experts.w2_weight#{expert}": (RANK, wide)}
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


def load(model: Model, sent: dict[str, torch.Tensor]) -> None:
    """As verl does it: the experts' loader is put on their Parameters first (verl/utils/vllm/patch.py@55e3c5b)."""
    for one in (model.experts.w13_weight, model.experts.w2_weight):
        one.weight_loader = model.experts.weight_loader  # type: ignore[attr-defined]
    model.load_weights(sent.items())


def live_storages() -> dict[int, int]:
    """Bytes by address of all storages in main memory that any tensor in this process holds."""
    gc.collect()
    # by exact type: the rest are tensors without memory, of torch's compiler, and proxies that isinstance would ask
    plain = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter)]
    storages = [one.untyped_storage() for one in plain if one.device.type == "cpu"]
    return {one.data_ptr(): one.nbytes() for one in storages if one.nbytes()}


def live_bytes() -> int:
    """Bytes of all of them."""
    return sum(live_storages().values())
