"""Tiny models, and Megatron's checkpoints of them spelled out a second time: plain cat, chunk and stack of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
    "num_nextn_predict_layers": 0,
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
QWEN3 = QWEN | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 6}
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "moe_intermediate_size": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def hf_tensors(config: dict[str, Any]) -> dict[str, Any]:
    """Random tensors of the names and shapes that transformers' model of `config` has."""
    import torch

    torch.manual_seed(1)
    found: dict[str, Any] = {}

    def add(name: str, *shape: int, dtype: Any = torch.bfloat16) -> None:
        found[name] = torch.randn(shape).to(dtype)

    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    add("model.embed_tokens.weight", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        add(f"{at}input_layernorm.weight", hidden)
        add(f"{at}post_attention_layernorm.weight", hidden)
        if "kv_lora_rank" in config:
            q, kv = config["q_lora_rank"], config["kv_lora_rank"]
            nope, rope, value = (config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
            add(f"{at}self_attn.q_a_proj.weight", q, hidden)
            add(f"{at}self_attn.q_a_layernorm.weight", q)
            add(f"{at}self_attn.q_b_proj.weight", heads * (nope + rope), q)
            add(f"{at}self_attn.kv_a_proj_with_mqa.weight", kv + rope, hidden)
            add(f"{at}self_attn.kv_a_layernorm.weight", kv)
            add(f"{at}self_attn.kv_b_proj.weight", heads * (nope + value), kv)
            add(f"{at}self_attn.o_proj.weight", hidden, heads * value)
        else:
            head = config.get("head_dim", hidden // heads)
            for one, count in (("q", heads), ("k", config["num_key_value_heads"])):
                add(f"{at}self_attn.{one}_proj.weight", count * head, hidden)
                if "head_dim" in config:
                    add(f"{at}self_attn.{one}_norm.weight", head)
                else:
                    add(f"{at}self_attn.{one}_proj.bias", count * head)
            add(f"{at}self_attn.v_proj.weight", config["num_key_value_heads"] * head, hidden)
            if "head_dim" not in config:
                add(f"{at}self_attn.v_proj.bias", config["num_key_value_heads"] * head)
            add(f"{at}self_attn.o_proj.weight", hidden, heads * head)
        experts = config.get("n_routed_experts") or config.get("num_experts")
        if experts is None or layer < config.get("first_k_dense_replace", 0):
            ffns = {"mlp": config["intermediate_size"]}
        else:
            add(f"{at}mlp.gate.weight", experts, hidden)
            ffns = {f"mlp.experts.{expert}": config["moe_intermediate_size"] for expert in range(experts)}
            if "n_shared_experts" in config:
                add(f"{at}mlp.gate.e_score_correction_bias", experts, dtype=torch.float32)
                ffns["mlp.shared_experts"] = config["n_shared_experts"] * config["moe_intermediate_size"]
        for name, ffn in ffns.items():
            add(f"{at}{name}.gate_proj.weight", ffn, hidden)
            add(f"{at}{name}.up_proj.weight", ffn, hidden)
            add(f"{at}{name}.down_proj.weight", hidden, ffn)
    add("model.norm.weight", hidden)
    add("lm_head.weight", config["vocab_size"], hidden)
    return found


def write_hf(folder: Path, config: dict[str, Any], tensors: dict[str, Any], shards: int = 3) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        own = names[shard::shards]
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(own, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def dist_tensors(config: dict[str, Any], hf: dict[str, Any]) -> dict[str, Any]:
    """What a `torch_dist` checkpoint of core 0.12.1 has."""
    import torch

    found = {
        "embedding.word_embeddings.weight": hf["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": hf["model.norm.weight"],
        "output_layer.weight": hf["lm_head.weight"],
    }
    layers = [_dist_layer(config, hf, layer) for layer in range(config["num_hidden_layers"])]
    if "kv_lora_rank" in config:
        for number, layer in enumerate(layers):
            found |= {f"decoder.layers.{number}.{key}": tensor for key, tensor in layer.items()}
    else:
        found |= {f"decoder.layers.{key}": torch.stack([layer[key] for layer in layers]) for key in layers[0]}
    return found


def _gated(hf: dict[str, Any], name: str) -> Any:
    import torch

    return torch.cat([hf[f"{name}.gate_proj.weight"], hf[f"{name}.up_proj.weight"]])


def _dist_layer(config: dict[str, Any], hf: dict[str, Any], layer: int) -> dict[str, Any]:
    import torch

    at = f"model.layers.{layer}."
    attn, norm = f"{at}self_attn.", hf[f"{at}post_attention_layernorm.weight"]
    found = {"self_attention.linear_proj.weight": hf[f"{attn}o_proj.weight"]}
    if "kv_lora_rank" in config:
        found["input_layernorm.weight"] = hf[f"{at}input_layernorm.weight"]
        for key, name in {
            "linear_q_down_proj.weight": "q_a_proj",
            "linear_q_up_proj.layer_norm_weight": "q_a_layernorm",
            "linear_q_up_proj.weight": "q_b_proj",
            "linear_kv_down_proj.weight": "kv_a_proj_with_mqa",
            "linear_kv_up_proj.layer_norm_weight": "kv_a_layernorm",
            "linear_kv_up_proj.weight": "kv_b_proj",
        }.items():
            found[f"self_attention.{key}"] = hf[f"{attn}{name}.weight"]
    else:
        found["self_attention.linear_qkv.layer_norm_weight"] = hf[f"{at}input_layernorm.weight"]
        found["self_attention.linear_qkv.weight"] = qkv(config, hf, attn, "weight")
        if "head_dim" in config:
            found["self_attention.q_layernorm.weight"] = hf[f"{attn}q_norm.weight"]
            found["self_attention.k_layernorm.weight"] = hf[f"{attn}k_norm.weight"]
        else:
            found["self_attention.linear_qkv.bias"] = qkv(config, hf, attn, "bias")
    if f"{at}mlp.gate.weight" not in hf:
        found["mlp.linear_fc1.layer_norm_weight"] = norm
        found["mlp.linear_fc1.weight"] = _gated(hf, f"{at}mlp")
        found["mlp.linear_fc2.weight"] = hf[f"{at}mlp.down_proj.weight"]
        return found
    experts = [f"{at}mlp.experts.{n}" for n in range(hf[f"{at}mlp.gate.weight"].shape[0])]
    found["pre_mlp_layernorm.weight"] = norm
    found["mlp.router.weight"] = hf[f"{at}mlp.gate.weight"]
    found["mlp.experts.experts.linear_fc1.weight"] = torch.stack([_gated(hf, one) for one in experts])
    found["mlp.experts.experts.linear_fc2.weight"] = torch.stack(
        [hf[f"{one}.down_proj.weight"] for one in experts]
    )
    if f"{at}mlp.shared_experts.up_proj.weight" in hf:
        found["mlp.router.expert_bias"] = hf[f"{at}mlp.gate.e_score_correction_bias"]
        found["mlp.shared_experts.linear_fc1.weight"] = _gated(hf, f"{at}mlp.shared_experts")
        found["mlp.shared_experts.linear_fc2.weight"] = hf[f"{at}mlp.shared_experts.down_proj.weight"]
    return found


def qkv(config: dict[str, Any], hf: dict[str, Any], attn: str, kind: str) -> Any:
    """By group: its queries, its keys, its values."""
    import torch

    groups = config["num_key_value_heads"]
    parts = [hf[f"{attn}{one}_proj.{kind}"].chunk(groups) for one in ("q", "k", "v")]
    return torch.cat([parts[one][group] for group in range(groups) for one in range(3)])


def write_dist(folder: Path, tensors: dict[str, Any]) -> Path:
    """Written by torch's own writer."""
    import logging

    from torch.distributed import checkpoint

    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    checkpoint.save(tensors, checkpoint_id=folder, no_dist=True)
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    return folder


def write_legacy_deepseek(
    folder: Path,
    config: dict[str, Any],
    hf: dict[str, Any],
    tp: int,
    layers: list[int],
    ep: int,
    extend: bool,
) -> Path:
    """As MindSpeed-LLM's examples/mcore/deepseek3/convert_ckpt_deepseek3.py@3a712f5 with --moe-grouped-gemm."""
    import torch

    first = 0
    for stage, count in enumerate(layers):
        ranks: dict[tuple[int, int], dict[str, Any]] = {(t, e): {} for t in range(tp) for e in range(ep)}

        def put(key: str, parts: Any, ranks: dict[tuple[int, int], dict[str, Any]] = ranks) -> None:
            for (t, _), model in ranks.items():
                model[key] = (parts[t] if isinstance(parts, (list, tuple)) else parts).clone()

        if stage == 0:
            put("embedding.word_embeddings.weight", hf["model.embed_tokens.weight"].chunk(tp))
        for local in range(count):
            at, to = f"model.layers.{first + local}.", f"decoder.layers.{local}."
            attn = f"{at}self_attn."
            put(f"{to}input_layernorm.weight", hf[f"{at}input_layernorm.weight"])
            put(f"{to}pre_mlp_layernorm.weight", hf[f"{at}post_attention_layernorm.weight"])
            to = f"{to}self_attention."
            down = [hf[f"{attn}q_a_proj.weight"], hf[f"{attn}kv_a_proj_with_mqa.weight"]]
            put(f"{to}linear_qkv.weight", torch.cat(down))
            put(f"{to}linear_proj.weight", hf[f"{attn}o_proj.weight"].chunk(tp, dim=1))
            put(f"{to}q_layernorm.weight", hf[f"{attn}q_a_layernorm.weight"])
            put(f"{to}k_layernorm.weight", hf[f"{attn}kv_a_layernorm.weight"])
            put(f"{to}linear_qb.weight", hf[f"{attn}q_b_proj.weight"].chunk(tp))
            put(f"{to}linear_kvb.weight", hf[f"{attn}kv_b_proj.weight"].chunk(tp))
            to = f"decoder.layers.{local}.mlp."
            dense = f"{at}mlp.gate.weight" not in hf
            name, key = (f"{at}mlp", to) if dense else (f"{at}mlp.shared_experts", f"{to}shared_experts.")
            halves = [hf[f"{name}.{half}_proj.weight"].chunk(tp) for half in ("gate", "up")]
            put(f"{key}linear_fc1.weight", [torch.cat(pair) for pair in zip(*halves, strict=True)])
            put(f"{key}linear_fc2.weight", hf[f"{name}.down_proj.weight"].chunk(tp, dim=1))
            if dense:
                continue
            put(f"{to}router.weight", hf[f"{at}mlp.gate.weight"])
            put(f"{to}router.expert_bias", hf[f"{at}mlp.gate.e_score_correction_bias"])
            _put_experts(ranks, hf, config, at, f"{to}experts.", tp, ep, extend)
        if stage == len(layers) - 1:
            put("decoder.final_layernorm.weight", hf["model.norm.weight"])
            put("output_layer.weight", hf["lm_head.weight"].chunk(tp))
        for (t, e), model in ranks.items():
            in_stage = f"_{stage:03d}" if len(layers) > 1 else ""
            _write_rank(folder, f"{t:02d}{in_stage}" + (f"_{e:03d}" if ep > 1 else ""), model)
        first += count
    return folder


def _write_rank(folder: Path, numbers: str, model: dict[str, Any]) -> None:
    import torch

    place = folder / "iter_0000001" / f"mp_rank_{numbers}"
    place.mkdir(parents=True)
    content = {"model": model, "checkpoint_version": 3.0, "iteration": 1}
    torch.save(content, place / "model_optim_rng.pt", pickle_protocol=4)
    (folder / "latest_checkpointed_iteration.txt").write_text("1")


def _put_experts(
    ranks: Any, hf: dict[str, Any], config: dict[str, Any], at: str, to: str, tp: int, ep: int, extend: bool
) -> None:
    import torch

    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    names = [f"{at}mlp.experts.{n}" for n in range(experts)]
    over = 1 if extend else tp
    fc1 = []
    for name in names:
        halves = [hf[f"{name}.{half}_proj.weight"].chunk(over) for half in ("gate", "up")]
        fc1.append(torch.cat([torch.cat(pair) for pair in zip(*halves, strict=True)]).t())
    gemm1 = torch.cat(fc1).view(hidden, -1).view(experts, hidden, -1)
    gemm2 = torch.cat([hf[f"{name}.down_proj.weight"].t() for name in names]).view(experts, -1, hidden)
    for (t, e), model in ranks.items():
        if extend:
            one, two = (gemm.chunk(ep * tp)[e * tp + t] for gemm in (gemm1, gemm2))
        else:
            one, two = gemm1.chunk(ep)[e].chunk(tp, dim=2)[t], gemm2.chunk(ep)[e].chunk(tp, dim=1)[t]
        model[f"{to}weight1"] = one.reshape(hidden, -1).clone()
        model[f"{to}weight2"] = two.reshape(-1, hidden).clone()


def write_legacy_qwen(folder: Path, config: dict[str, Any], hf: dict[str, Any], tp: int, pp: int) -> Path:
    """As MindSpeed-LLM's convert_ckpt.py@421ef7b with --use-mcore-models --model-type-hf llama2 --add-qkv-bias."""
    import torch

    each = config["num_hidden_layers"] // pp
    for stage in range(pp):
        ranks: list[dict[str, Any]] = [{} for _ in range(tp)]
        parts: dict[str, Any] = {}
        if stage == 0:
            parts["embedding.word_embeddings.weight"] = hf["model.embed_tokens.weight"].chunk(tp)
        for local in range(each):
            at, to = f"model.layers.{stage * each + local}.", f"decoder.layers.{local}."
            attn, own = f"{at}self_attn.", f"{to}self_attention."
            halves = [hf[f"{at}mlp.{half}_proj.weight"].chunk(tp) for half in ("gate", "up")]
            parts |= {
                f"{to}input_layernorm.weight": [hf[f"{at}input_layernorm.weight"]] * tp,
                f"{own}linear_proj.weight": hf[f"{attn}o_proj.weight"].chunk(tp, dim=1),
                f"{own}linear_qkv.weight": qkv(config, hf, attn, "weight").chunk(tp),
                f"{own}linear_qkv.bias": qkv(config, hf, attn, "bias").chunk(tp),
                f"{to}pre_mlp_layernorm.weight": [hf[f"{at}post_attention_layernorm.weight"]] * tp,
                f"{to}mlp.linear_fc1.weight": [torch.cat(pair) for pair in zip(*halves, strict=True)],
                f"{to}mlp.linear_fc2.weight": hf[f"{at}mlp.down_proj.weight"].chunk(tp, dim=1),
            }
        if stage == pp - 1:
            parts["decoder.final_layernorm.weight"] = [hf["model.norm.weight"]] * tp
            if "lm_head.weight" in hf:
                parts["output_layer.weight"] = hf["lm_head.weight"].chunk(tp)
        for key, shares in parts.items():
            for rank, share in zip(ranks, shares, strict=True):
                rank[key] = share.clone()
        for tensor, model in enumerate(ranks):
            _write_rank(folder, f"{tensor:02d}" + (f"_{stage:03d}" if pp > 1 else ""), model)
    return folder


def read_hf(folder: Path) -> dict[str, Any]:
    """All tensors of a folder, by safetensors' own reader."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found
