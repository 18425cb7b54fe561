# SPDX-License-Identifier: GPL-2.0-only
"""Make a weights file: weights.py FILE BYTES [TYPE]

A model of llama's architecture with random weights and a vocabulary of 512
words, in GGUF. It has as many layers as fit into BYTES; the same arguments make
the same file. TYPE is that of the matrices: F32 (the default), F16, Q8_0, Q4_0.
It computes as fast as a trained model of that size, and answers nonsense.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

import gguf
import numpy as np

WIDTH = 1024
HEADS = 8
HIDDEN = 4096
WORDS = 512
CONTEXT = 256
SEED = 1
# Of a tensor's data in the file.
ALIGNMENT = 32
# Room for what is not weights: names, shapes and the vocabulary.
OVERHEAD = 64 << 10

Shape = tuple[int, ...]


def outer_shapes() -> dict[str, Shape]:
    """The tensors that are not in a layer, in the order of the file."""
    return {
        "token_embd.weight": (WORDS, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (WORDS, WIDTH),
    }


def layer_shapes(layer: int) -> dict[str, Shape]:
    """The tensors of one layer, in the order of the file."""
    shapes: dict[str, Shape] = {
        "attn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH, WIDTH),
        "attn_v": (WIDTH, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
    }
    return {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def kind_of(shape: Shape, matrices: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """The type of a tensor: llama.cpp wants vectors in F32."""
    return matrices if len(shape) > 1 else gguf.GGMLQuantizationType.F32


def size_of(shape: Shape, matrices: gguf.GGMLQuantizationType) -> int:
    """Bytes of a tensor in the file."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind_of(shape, matrices)]
    count = int(np.prod(shape)) // per_block * block_bytes
    return -(-count // ALIGNMENT) * ALIGNMENT


def layers_for(size: int, matrices: gguf.GGMLQuantizationType) -> int:
    """How many layers fit into a file of ``size`` bytes; 0 if none."""
    outer = sum(size_of(shape, matrices) for shape in outer_shapes().values())
    layer = sum(size_of(shape, matrices) for shape in layer_shapes(0).values())
    return max(0, (size - outer - OVERHEAD) // layer)


def values(shape: Shape, random: np.random.Generator) -> np.ndarray:
    """Random weights that keep the activations in range whatever the number of layers."""
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    weights = random.standard_normal(shape, dtype=np.float32)
    weights *= np.float32(shape[1] ** -0.5)
    return weights


def describe(writer: gguf.GGUFWriter, layers: int) -> None:
    """What llama.cpp wants to know besides the weights."""
    writer.add_name("Quell: random weights")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("llama")
    # Three special ones, the 256 bytes so that any prompt has tokens, and words; those of a
    # letter are one token each, the others only come out.
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256
    words += [f"\u2581{letter}" for letter in string.ascii_lowercase]
    words += [f"\u2581w{number}" for number in range(WORDS - len(words))]
    kinds += [gguf.TokenType.NORMAL] * (WORDS - len(kinds))
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * WORDS)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)


def make(file: Path, size: int, matrices: gguf.GGMLQuantizationType) -> None:
    """Write ``file``, at most ``size`` bytes, a tensor at a time. ValueError if that is too small."""
    layers = layers_for(size, matrices)
    if not layers:
        raise ValueError(f"{size} bytes are too few for one layer")
    shapes = outer_shapes()
    for layer in range(layers):
        shapes |= layer_shapes(layer)
    writer = gguf.GGUFWriter(file, "llama")
    describe(writer, layers)
    for name, shape in shapes.items():
        kind = kind_of(shape, matrices)
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            dtype = np.dtype(np.float32 if kind == gguf.GGMLQuantizationType.F32 else np.float16)
            count = int(np.prod(shape)) * dtype.itemsize
            writer.add_tensor_info(name, shape, dtype, count)
        else:
            stored = gguf.quant_shape_to_byte_shape(shape, kind)
            count = int(np.prod(stored))
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(SEED)
    for shape in shapes.values():
        kind = kind_of(shape, matrices)
        writer.write_tensor_data(gguf.quants.quantize(values(shape, random), kind))
    writer.close()


def main(argv: list[str]) -> int:
    """The command line; 1 and a sentence when the file cannot be made."""
    if len(argv) not in (3, 4):
        print("usage: weights.py FILE BYTES [TYPE]", file=sys.stderr)
        return 2
    try:
        make(Path(argv[1]), int(argv[2]), gguf.GGMLQuantizationType[(argv[3:] or ["F32"])[0]])
    except (KeyError, ValueError, OSError) as error:
        print(f"weights.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
