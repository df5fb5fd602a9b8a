#!/usr/bin/env python3
"""Makes the golden checkpoints that are quantized already, and those in PyTorch's own formats.

    python3 tests/golden/make_checkpoints.py [NAME...]    (writes into checkpoints/ beside itself)

Needs torch, numpy, safetensors, transformers, compressed-tensors, bitsandbytes and xxhash; the versions used
are in checkpoints/manifest.json. The results are committed, so only a change of this file needs Python. Each variant
is a small random Llama or Qwen 2 of one layer:

    config.json, and weights    a checkpoint as a user would have it, but for a tokenizer
    expected.json               of each of its matrices the XXH3-64 of the values that the checkpoint stands
                                for, as float32, and the first of them

The values of GPTQ, AWQ, FP8 and ModelOpt are those of their formulas, in float32: scale * (number - zero).
The packages compute the same product in the type of the scales; here it is rounded by whoever wants it
rounded. Those of BitNet come from Transformers' functions, those of compressed-tensors and bitsandbytes come from the packages, with float32 scales where the
package multiplies in the type of these.
"""

import collections
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import bitsandbytes
import safetensors.torch
import torch
import xxhash
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers.integrations import bitnet as of_bitnet

HERE = Path(__file__).resolve().parent / "checkpoints"
VOCAB = 24
SHOWN = 4


class Shape:
    """A Llama's, or with biases a Qwen 2's."""

    def __init__(self, hidden=64, ffn=96, kv=32, heads=4, biases=False):
        self.hidden, self.ffn, self.kv, self.heads, self.biases = hidden, ffn, kv, heads, biases

    def matrices(self):
        h, f, kv = self.hidden, self.ffn, self.kv
        layer = "model.layers.0."
        return {layer + "self_attn.q_proj": (h, h), layer + "self_attn.k_proj": (kv, h),
                layer + "self_attn.v_proj": (kv, h), layer + "self_attn.o_proj": (h, h),
                layer + "mlp.gate_proj": (f, h), layer + "mlp.up_proj": (f, h),
                layer + "mlp.down_proj": (h, f)}

    def config(self):
        kind = "qwen2" if self.biases else "llama"
        return {"architectures": ["Qwen2ForCausalLM" if self.biases else "LlamaForCausalLM"],
                "model_type": kind, "hidden_size": self.hidden, "intermediate_size": self.ffn,
                "num_hidden_layers": 1, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv * self.heads // self.hidden, "vocab_size": VOCAB,
                "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
                "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
                "rope_theta": 10000.0}

    def others(self, generator, dtype):
        def normal(*size):
            return (0.3 * torch.randn(*size, generator=generator)).to(dtype)
        layer = "model.layers.0."
        tensors = {"model.embed_tokens.weight": normal(VOCAB, self.hidden),
                   "lm_head.weight": normal(VOCAB, self.hidden),
                   "model.norm.weight": 1 + normal(self.hidden),
                   layer + "input_layernorm.weight": 1 + normal(self.hidden),
                   layer + "post_attention_layernorm.weight": 1 + normal(self.hidden)}
        if self.biases:
            for name, rows in (("q", self.hidden), ("k", self.kv), ("v", self.kv)):
                tensors[layer + f"self_attn.{name}_proj.bias"] = normal(rows)
        return tensors


def random(generator, *size):
    return torch.randn(*size, generator=generator) / size[-1] ** 0.5


def as_int32(words):
    """uint32 values, in an int64 tensor, as int32 has them."""
    return torch.from_numpy(words.numpy().astype("<u4").view("<i4").copy())


def pack_down(numbers, bits):
    """Numbers [n, columns] as words [n * bits / 32, columns]: one stream of bits for each column."""
    n, columns = numbers.shape
    words = torch.zeros(n * bits // 32, columns, dtype=torch.int64)
    for i in range(n):
        word, shift = divmod(i * bits, 32)
        words[word] |= (numbers[i] << shift) & 0xffffffff
        if shift + bits > 32:
            words[word + 1] |= numbers[i] >> (32 - shift)
    return as_int32(words)


# --- The methods: tensors of a module of those shape, and the values that they stand for ------------


def round_to_groups(weight, bits, group, sym, order=None):
    """Numbers [out, in], zero points and float16 scales [out, groups], and the group of each column."""
    out, columns = weight.shape
    group = columns if group < 0 else group
    groups = torch.arange(columns) // group
    if order is not None:
        groups = groups[order]
    most = 2**bits - 1
    scales, zeros = [], []
    for g in range(groups.max() + 1):
        of_group = weight[:, groups == g]
        low, high = of_group.amin(1).clamp(max=0), of_group.amax(1).clamp(min=0)
        if sym:
            high = torch.maximum(-low, high)
            low = -high
        scale = ((high - low) / most).half()
        zero = torch.full_like(low, (most + 1) // 2) if sym else torch.round(-low / scale.float())
        scales.append(scale)
        zeros.append(zero.clamp(0, most).long())
    scales, zeros = torch.stack(scales, 1), torch.stack(zeros, 1)
    numbers = torch.round(weight / scales.float()[:, groups]).long() + zeros[:, groups]
    return numbers.clamp(0, most), zeros, scales, groups


def gptq(bits, group, sym=True, act_order=False, version=1, bias=False):
    def make(name, weight, generator):
        columns = weight.shape[1]
        order = torch.randperm(columns, generator=generator) if act_order else None
        numbers, zeros, scales, groups = round_to_groups(weight, bits, group, sym, order)
        if version == 1:  # one less is stored, and 0 becomes 1 there: it cannot be said
            zeros = zeros.clamp(min=1)
        stored = zeros - 1 if version == 1 else zeros
        tensors = {"qweight": pack_down(numbers.T.contiguous(), bits),
                   "qzeros": pack_down(stored, bits).T.contiguous(),
                   "scales": scales.T.contiguous(), "g_idx": groups.int()}
        if bias:
            tensors["bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
        # As AutoGPTQ unpacks them: each of a word's numbers, plus one within the bits.
        if 32 % bits == 0:
            shifts = torch.arange(0, 32, bits)
            words = tensors["qzeros"].long()
            points = (words[:, :, None] >> shifts) & (2**bits - 1)
            points = points.reshape(len(words), -1)
            if version == 1:
                points = (points + 1) & (2**bits - 1)
            words = tensors["qweight"].long()
            codes = ((words[:, None, :] >> shifts[:, None]) & (2**bits - 1)).reshape(columns, -1)
        else:
            points, codes = zeros.T, numbers.T
        g = tensors["g_idx"].long()
        values = tensors["scales"].float()[g] * (codes - points[g]).float()
        return tensors, values.T

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym,
              "desc_act": act_order,
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    return config, make


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(group, gemv=False):
    def pack(numbers, order):
        words = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
        for i, column in enumerate(order):
            words |= numbers[:, column::8] << (4 * i)
        return as_int32(words)

    def make(name, weight, generator):
        numbers, zeros, scales, groups = round_to_groups(weight, 4, group, False)
        values = (numbers - zeros[:, groups]).float() * scales.float()[:, groups]
        if not gemv:
            return {"qweight": pack(numbers.T, AWQ_ORDER), "qzeros": pack(zeros.T, AWQ_ORDER),
                    "scales": scales.T.contiguous()}, values
        multiple = {32: 4, 64: 2}.get(group, 1)
        words = -(-(weight.shape[1] // group) // 8)
        words = -(-words // multiple) * multiple
        room = torch.nn.functional.pad
        return {"qweight": pack(numbers, range(8)),
                "qzeros": pack(room(zeros, (0, 8 * words - zeros.shape[1])), range(8)),
                "scales": room(scales, (0, 8 * words - scales.shape[1]))}, values

    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
            "version": "gemv" if gemv else "gemm"}, make


def bitsandbytes_4bit(kind, double, block):
    def make(name, weight, generator):
        functional = bitsandbytes.functional
        packed, state = functional.quantize_4bit(weight, blocksize=block, quant_type=kind,
                                                 compress_statistics=double)
        largest = state.absmax
        if state.nested:
            largest = functional.dequantize_blockwise(largest, state.state2) + state.offset
        # The package's plain PyTorch: its CPU kernel goes wrong where a block is longer than a row.
        values = _dequantize_4bit_compute(packed.reshape(-1), largest, state.code, block,
                                          weight.shape, torch.float32)
        tensors = {"weight": packed}
        for key, tensor in state.as_dict(packed=True).items():
            tensors["weight." + key] = tensor
        return tensors, values

    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind,
            "bnb_4bit_use_double_quant": double}, make


def bitsandbytes_8bit():
    def make(name, weight, generator):
        functional = bitsandbytes.functional
        numbers, largest, _ = functional.int8_vectorwise_quant(weight.half())
        values = functional.int8_vectorwise_dequant(numbers, largest)
        return {"weight": numbers, "SCB": largest,
                "weight_format": torch.tensor(0, dtype=torch.uint8)}, values.float()

    return {"quant_method": "bitsandbytes", "load_in_8bit": True}, make


def fp8(block=None, per_row=False, static=False, scale_dtype=torch.float32, method="fp8",
        algorithm=None):
    def make(name, weight, generator):
        out, columns = weight.shape
        b = block or ((1, columns) if per_row else (out, columns))
        rows_of, columns_of = torch.arange(out) // b[0], torch.arange(columns) // b[1]
        scales = torch.zeros(rows_of[-1] + 1, columns_of[-1] + 1)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                scales[i, j] = weight[rows_of == i][:, columns_of == j].abs().max() / 448
        scales = scales.to(scale_dtype)
        full = scales.float()[rows_of][:, columns_of]
        numbers = (weight / full).clamp(-448, 448).to(torch.float8_e4m3fn)
        name = "weight_scale_inv" if block else "weight_scale"
        stored = scales if block or per_row else scales.reshape([])
        tensors = {"weight": numbers, name: stored}
        if static:
            tensors["input_scale"] = torch.tensor(0.5)
        return tensors, numbers.float() * full

    config = {"quant_method": method}
    if method == "fp8":
        config |= {"activation_scheme": "static" if static else "dynamic", "fmt": "e4m3"}
    if block:
        config["weight_block_size"] = list(block)
    if algorithm:
        config["quant_algo"] = algorithm
    return config, make


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nvfp4_modelopt():
    def make(name, weight, generator):
        whole = weight.abs().max() / (6 * 448)
        groups = torch.arange(weight.shape[1]) // 16
        blocks = weight.reshape(len(weight), -1, 16)
        scales = (blocks.abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
        of_blocks = scales.float() * whole
        codes = ((weight / of_blocks[:, groups])[..., None] - E2M1).abs().argmin(-1)
        packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
        return {"weight": packed, "weight_scale": scales, "weight_scale_2": whole,
                "input_scale": torch.tensor(0.25)}, E2M1[codes] * of_blocks[:, groups]

    return {"quant_method": "modelopt", "quant_algo": "NVFP4"}, make


def bitnet(linear_class, online=False):
    """Numbers -1, 0 and 1, which "bitlinear" divides by X.weight_scale and "autobitlinear" multiplies by it; or
    master weights, here multiples of 1/64, of which the mean has no rounding that could differ."""
    def make(name, weight, generator):
        if online:
            weight = (64 * weight).round() / 64
            return {"weight": weight.bfloat16()}, of_bitnet.WeightQuant.apply(weight)
        divides = linear_class == "bitlinear"
        mean = weight.abs().mean()
        numbers = (weight / mean).round().clamp(-1, 1)
        scale = (1 / mean if divides else mean).bfloat16().reshape(1)
        packed = of_bitnet.pack_weights(numbers)
        values = of_bitnet.unpack_weights(packed, torch.float32)
        return ({"weight": packed, "weight_scale": scale},
                values / scale.float() if divides else values * scale.float())

    return {"quant_method": "bitnet", "linear_class": linear_class, "modules_to_not_convert": None,
            "quantization_mode": "online" if online else "offline"}, make


def compressed(format, weights, activations=None, act_order=False):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)

    def make(name, weight, generator):
        out, columns = weight.shape
        extra, kept, order = {}, {}, None
        if act_order:  # which the package applied to columns in the order of their groups
            order = torch.randperm(columns, generator=generator)
            weight = weight[:, order]
        if args.strategy == "tensor":
            blocks = weight.reshape(1, -1)
        elif args.strategy == "channel":
            blocks = weight
        elif args.strategy == "block":
            rows, width = args.block_structure
            room = torch.nn.functional.pad(weight, (0, -columns % width, 0, -out % rows))
            blocks = room.unfold(0, rows, rows).unfold(1, width, width).flatten(2)
        else:
            blocks = weight.reshape(out, -1, args.group_size)
        if args.strategy == "tensor_group":
            extra["global_scale"] = 448 * 6 / weight.abs().max().reshape(1)
        scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, **extra)
        if args.strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        elif args.strategy == "channel":
            scale, zero = scale.reshape(out, 1), zero.reshape(out, 1)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        if extra:
            state["weight_global_scale"] = extra["global_scale"]
        state = compressor.compress(state, scheme)
        values = compressor.decompress(dict(state), scheme)["weight"]
        if "weight_shape" in state:
            state["weight_shape"] = torch.tensor(list(weight.shape))
        if act_order:
            state["weight_g_idx"] = (torch.argsort(order) // args.group_size).int()
            # Columns go back to where they were before they were sorted by their groups.
            from compressed_tensors.compressors.pack_quantized.helpers import (
                pack_to_int32, unpack_from_int32)
            place = torch.argsort(order)
            numbers = unpack_from_int32(state["weight_packed"], args.num_bits, weight.shape)
            state["weight_packed"] = pack_to_int32(numbers[:, place].contiguous(), args.num_bits)
            values = values[:, place]
        if activations:
            kept["input_scale"] = torch.tensor([0.5])
        return {**state, **kept}, values

    config = {"quant_method": "compressed-tensors", "format": format,
              "quantization_status": "compressed", "ignore": ["lm_head"],
              "kv_cache_scheme": None, "sparsity_config": {}, "transform_config": {},
              "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": activations,
                                            "weights": args.model_dump(mode="json")}}}
    return config, make


def plain(dtype):
    return None, lambda name, weight, generator: ({"weight": weight.to(dtype)},
                                                  weight.to(dtype).float())


INT_GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INT_ROWS = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8_ROWS = {"num_bits": 8, "type": "float", "strategy": "channel"}

VARIANTS = {
    "gptq": (Shape(), gptq(4, 32)),
    "gptq_act_order": (Shape(biases=True), gptq(4, 32, sym=False, act_order=True)),
    "gptq_v2": (Shape(), gptq(4, 32, sym=False, version=2)),
    "gptq_2bit": (Shape(), gptq(2, -1, sym=False, version=2)),
    "gptq_3bit": (Shape(), gptq(3, 32, sym=False)),
    "gptq_8bit_biases": (Shape(), gptq(8, -1, bias=True)),
    "awq": (Shape(biases=True), awq(32)),
    "awq_gemv": (Shape(hidden=128, ffn=64, kv=32), awq(64, gemv=True)),
    "bnb_nf4": (Shape(hidden=40, ffn=72, kv=20), bitsandbytes_4bit("nf4", False, 64)),
    "bnb_nf4_double": (Shape(hidden=64, ffn=296), bitsandbytes_4bit("nf4", True, 64)),
    "bnb_fp4": (Shape(biases=True), bitsandbytes_4bit("fp4", True, 128)),
    "bnb_int8": (Shape(hidden=40, ffn=72, kv=20), bitsandbytes_8bit()),
    "fp8_blocks": (Shape(hidden=40, ffn=72, kv=20), fp8(block=(16, 32))),
    "fp8_blocks_bf16": (Shape(), fp8(block=(32, 32), scale_dtype=torch.bfloat16)),
    "fp8_static": (Shape(hidden=40, ffn=72, kv=20), fp8(static=True)),
    "fbgemm_fp8": (Shape(hidden=40, ffn=72, kv=20), fp8(per_row=True, method="fbgemm_fp8")),
    "modelopt_fp8": (Shape(), fp8(static=True, method="modelopt", algorithm="FP8")),
    "modelopt_nvfp4": (Shape(), nvfp4_modelopt()),
    "ct_w4a16": (Shape(), compressed("pack-quantized", {**INT_GROUPS, "symmetric": True})),
    "ct_w4a16_zeros": (Shape(kv=16), compressed("pack-quantized",
                                                {**INT_GROUPS, "symmetric": False})),
    "ct_w4a16_act_order": (Shape(), compressed("pack-quantized", {**INT_GROUPS, "symmetric": True},
                                               act_order=True)),
    "ct_w3a16_odd": (Shape(hidden=40, ffn=72, kv=20),
                     compressed("pack-quantized", {**INT_ROWS, "num_bits": 3,
                                                   "symmetric": False})),
    "ct_w8a16": (Shape(hidden=40, ffn=72, kv=20), compressed("pack-quantized", INT_ROWS)),
    "ct_w8a8": (Shape(hidden=40, ffn=72, kv=20, biases=True),
                compressed("int-quantized", INT_ROWS, INT_ROWS)),
    "ct_w8a8_zeros": (Shape(hidden=40, ffn=72, kv=20),
                      compressed("int-quantized", {**INT_ROWS, "symmetric": False})),
    "ct_fp8_tensor": (Shape(hidden=40, ffn=72, kv=20),
                      compressed("float-quantized", {**FP8_ROWS, "strategy": "tensor"}, FP8_ROWS)),
    "ct_fp8_rows": (Shape(hidden=40, ffn=72, kv=20), compressed("float-quantized", FP8_ROWS)),
    "ct_fp8_blocks": (Shape(), compressed("float-quantized", {
        **FP8_ROWS, "strategy": "block", "block_structure": [32, 32]})),
    "ct_nvfp4": (Shape(), compressed("nvfp4-pack-quantized", {
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})),
    "ct_mxfp4": (Shape(), compressed("mxfp4-pack-quantized", {
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
        "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"})),
    "pytorch": (Shape(hidden=40, ffn=72, kv=20), plain(torch.bfloat16)),
    "pytorch_legacy": (Shape(hidden=40, ffn=72, kv=20), plain(torch.bfloat16)),
    "pytorch_shards": (Shape(biases=True), gptq(4, 32)),
    "bitnet_bitlinear": (Shape(hidden=40, ffn=72, kv=20), bitnet("bitlinear")),
    "bitnet_autobitlinear": (Shape(biases=True), bitnet("autobitlinear")),
    "bitnet_online": (Shape(hidden=40, ffn=72, kv=20), bitnet("autobitlinear", online=True)),
}


def expected(values):
    floats = values.contiguous().numpy().astype("<f4")
    return {"shape": list(floats.shape), "hash": xxhash.xxh3_64_hexdigest(floats.tobytes()),
            "first": [float(value) for value in floats.reshape(-1)[:SHOWN]]}


# --- PyTorch's own formats: how tensors of a checkpoint are written to a folder ---------------------


def save_safetensors(tensors, folder):
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
                                folder / "model.safetensors", {"format": "pt"})


def state_dict(tensors):
    """As a model has it: parameters, of which some share their elements, in an ordered dictionary."""
    attention = "model.layers.0.self_attn."
    state = collections.OrderedDict(tensors)
    if attention + "q_proj.weight" in state:
        rows = [state[attention + f"{name}_proj.weight"] for name in "qkv"]
        joined = torch.cat(rows)
        for name, part in zip("qkv", joined.split([len(part) for part in rows])):
            state[attention + f"{name}_proj.weight"] = part
        down = "model.layers.0.mlp.down_proj.weight"
        state[down] = state[down].T.contiguous().T
        state["model.norm.weight"] = torch.nn.Parameter(state["model.norm.weight"])
    state._metadata = {"": {"version": 1}}
    return state


def save_pytorch(tensors, folder, archive=True):
    torch.save(state_dict(tensors), folder / "pytorch_model.bin",
               _use_new_zipfile_serialization=archive)


def save_shards(tensors, folder):
    names = sorted(tensors)
    files = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"pytorch_model-{i + 1:05}-of-00002.bin"
        torch.save(state_dict({name: tensors[name] for name in part}), folder / file)
        files |= {name: file for name in part}
    write_json(folder / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": files})


SAVED = {"pytorch": save_pytorch, "pytorch_shards": save_shards,
         "pytorch_legacy": lambda tensors, folder: save_pytorch(tensors, folder, archive=False)}


def make(name, shape, config, quantize, seed):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = shape.others(generator, torch.bfloat16)
    wanted, rounds_to = {}, "float32"
    for module, size in shape.matrices().items():
        weight = random(generator, *size)
        stored, values = quantize(module, weight, generator)
        assert values.shape == weight.shape and (values.float() - weight).abs().max() < 0.6, module
        if values.dtype != torch.float32:
            rounds_to = str(values.dtype).removeprefix("torch.")
        wanted[module + ".weight"] = expected(values.float())
        for key, tensor in stored.items():
            tensors[f"{module}.{key}"] = tensor.contiguous()
    SAVED.get(name, save_safetensors)(tensors, folder)
    write_json(folder / "config.json",
               shape.config() | ({"quantization_config": config} if config else {}))
    write_json(folder / "expected.json", {"rounded_to": rounds_to, "matrices": wanted})
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:20} {size:7} bytes")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    torch._dynamo.config.disable = True
    wanted = sys.argv[1:]
    for i, (name, (shape, (config, quantize))) in enumerate(VARIANTS.items()):
        if not wanted or name in wanted:
            make(name, shape, config, quantize, 3000 + i)
    packages = ("torch", "numpy", "safetensors", "transformers", "compressed-tensors", "bitsandbytes", "xxhash")
    path = HERE / "manifest.json"
    known = json.loads(path.read_text())["versions"] if wanted else {}  # of the others
    write_json(path, {
        "made_by": "tests/golden/make_checkpoints.py",
        "versions": {package: importlib.metadata.version(package) for package in packages} | known,
        "variants": [{"name": name} for name in VARIANTS]})


if __name__ == "__main__":
    main()
