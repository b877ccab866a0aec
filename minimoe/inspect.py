r'''Show what a model does with a prompt, token by token, on one page to be opened in a browser.

    python -m minimoe.inspect checkpoints/released/rloo 'def even_1a2b(x):\n    """Return whether x is even."""\n'
    python -m minimoe.inspect checkpoints/released/rloo PROMPT --compare checkpoints/released/pretrain-0085

The page has the prompt and its greedy completion, and for each token: what the model expects next, the experts that it
goes to, what every head of attention reads, and how the streams part. With --compare, also what another checkpoint of
the same model makes of the same tokens. The page is one file and loads nothing. For the full model it has 2 MB at 80
tokens, 3 MB at 100, 11 MB at 192, which is all of its context.

In a prompt, \n stands for a new line.
'''

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minimoe.cli import Parser, output_file, positive_int, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.errors import InputError
from minimoe.files import write_text
from minimoe.generate import generate, prompt_ids
from minimoe.layers.linear_attention import heads_first, transpose
from minimoe.layers.moe import Routed
from minimoe.layers.sparse_attention import SparseAttention
from minimoe.model import MiniMoE, Saved
from minimoe.tokenizer import BOS, EOS, FIRST_BYTE, PAD, SEP, completion_text
from minimoe.training.losses import log_softmax

TEMPLATE = Path(__file__).with_suffix(".html")
DATA = "{{DATA}}"     # where the numbers go in it
LIKELIEST = 10        # next tokens shown
DIGITS = 4            # significant, of every number


def inspect(model: MiniMoE, tokens: Sequence[int]) -> dict[str, Any]:
    """Return what the model makes of a text, as JSON can say it: the numbers of its own forward, rounded.

    `next` is `expected`, `streams` is `parting`; `experts` has a `routing` and `attention` a `weights` for each block.
    Raises `InputError` if the logits are not finite.
    """
    logits, saved = model.forward(np.array([tokens]))
    if not np.isfinite(logits).all():
        raise InputError("the model gives NaN or infinity for this text; use an earlier checkpoint")
    blocks = zip(model.blocks, saved.blocks, strict=True)
    return {
        "next": expected(logits[0], tokens),
        "experts": [routing(block.moe) for block in saved.blocks],
        "attention": [weights(block.attention, saved_block.attention) for block, saved_block in blocks],
        "streams": parting(model, saved),
    }


def expected(logits: np.ndarray, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the likeliest ids after each position of logits (T,V), and how likely each token was; None: the first."""
    order = np.argsort(-logits, axis=-1, kind="stable")                   # (T,V) ties: lower id first, as in decoding
    log_p = log_softmax(logits.astype(np.float64))                        # (T,V)
    top, came = order[:, :LIKELIEST], np.array(tokens[1:], int)[:, None]  # (T,10), (T-1,1)
    log_p_came = np.take_along_axis(log_p[:-1], came, axis=-1)[:, 0]
    rank = 1 + (order[:-1] == came).argmax(axis=-1)
    came_p = {"p": rounded(np.exp(log_p_came)), "log_p": rounded(log_p_came), "rank": rank.tolist()}
    return {
        "top": top.tolist(), "p": rounded(np.exp(np.take_along_axis(log_p, top, axis=-1))),
        "came": {key: [None, *values] for key, values in came_p.items()},
    }


def routing(routed: Routed) -> dict[str, Any]:
    """Return the experts of each token, best first, their weights, and the router's probabilities."""
    return {"chosen": routed.chosen.tolist(), "weights": rounded(routed.weights), "probs": rounded(routed.probs)}


def weights(attention: Any, saved: Any) -> dict[str, Any]:
    """Return the weight of each key s <= t for each query t of each head, head -> t -> s; None: dropped."""
    sparse = isinstance(attention, SparseAttention)
    matrices = sparse_weights(saved) if sparse else linear_weights(saved)                  # (H,T,T)
    heads = [[rounded(row[: t + 1]) for t, row in enumerate(matrix)] for matrix in matrices]
    return {"kind": "sparse" if sparse else "linear", "weights": heads}


def sparse_weights(saved: Any) -> np.ndarray:
    """Return the softmax over the kept keys, NaN for the others, (H,T,T), from what `SparseAttention.forward` saved."""
    *_, kept, p, _ = saved                                                # (1,H,T,T)
    return np.where(kept, p, np.nan)[0]


def linear_weights(saved: Any) -> np.ndarray:
    """Return the matrix (H,T,T) by which `LinearAttention.forward` has, in effect, multiplied the values.

    Only the numerator knows positions, so a weight may be negative, and a row need not sum to 1.
    """
    _, _, _, chunks, _, denominator, _, _ = saved
    q, k = (np.concatenate([chunk[i] for chunk in chunks], axis=2) for i in (1, 2))        # (1,H,T,K) both rotated
    return (np.tril(q @ transpose(k)) / heads_first(denominator))[0]


def streams(model: MiniMoE, saved: Saved) -> np.ndarray:
    """Return the streams before each of L blocks and after the last, (L+1,S,T,D)."""
    before = [block.read[0] for block in saved.blocks]                    # (S,1,T,D) each
    update, _ = saved.blocks[-1].write
    after, _ = model.blocks[-1].write_streams.forward(before[-1], update)
    return np.stack([*before, after])[:, :, 0]


def parting(model: MiniMoE, saved: Saved) -> dict[str, Any]:
    """Return each block's read and write weights, and how far the streams of each token stand apart, block by block.

    `distance` of each from their mean, in lengths of the mean; `angle` between the two that differ most, in degrees.
    """
    x = streams(model, saved).astype(np.float64)                          # (L+1,S,T,D)
    mean = x.mean(axis=1, keepdims=True)
    distance = np.linalg.norm(x - mean, axis=-1) / length(mean)           # (L+1,S,T)
    unit = x / length(x)[..., None]
    cosine = np.einsum("lstd,lutd->tlsu", unit, unit).min(axis=(2, 3))    # (T,L+1)
    return {
        "read": rounded(np.array([block.read[1] for block in saved.blocks])),              # (L,S)
        "write": rounded(np.array([block.write[1] for block in saved.blocks])),
        "distance": rounded(distance.transpose(2, 0, 1)),                 # (T,L+1,S)
        "angle": rounded(np.degrees(np.arccos(np.clip(cosine, -1, 1)))),
    }


def length(x: np.ndarray) -> np.ndarray:
    """Return the Euclidean lengths over the last axis, never 0."""
    return np.maximum(np.linalg.norm(x, axis=-1), np.finfo(x.dtype).tiny)


def rounded(x: np.ndarray) -> list[Any]:
    """Return the numbers as lists, with few digits, and None for NaN."""
    if x.ndim > 1:
        return [rounded(part) for part in x]
    return [None if number != number else float(f"{number:.{DIGITS}g}") for number in x.tolist()]


def name(token: int) -> str:
    """Return how an id is shown: a letter, ⏎, · for a space, the name of a special id, or a byte in hexadecimal."""
    names = {PAD: "PAD", BOS: "BOS", EOS: "EOS", SEP: "SEP", FIRST_BYTE + ord("\n"): "⏎", FIRST_BYTE + ord(" "): "·"}
    byte = token - FIRST_BYTE
    return names.get(token) or (f"id {token}" if byte > 255 else chr(byte) if 32 < byte < 127 else f"{byte:02x}")


def page(data: dict[str, Any]) -> str:
    """Return the page with its numbers. Whatever text stands among them, it ends no script and is no markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)       # in ASCII: even U+2028 is escaped
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return TEMPLATE.read_text(encoding="utf-8").replace(DATA, text)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="the model's folder")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    parser.add_argument("--out", type=output_file, default="inspect.html", metavar="FILE", help="the page to write")
    parser.add_argument("--max-new-tokens", type=positive_int, default=48, help="most tokens to add to the prompt")
    parser.add_argument("--compare", type=Path, metavar="CHECKPOINT", help="another checkpoint of the same model")
    args = parser.parse_args()
    if args.out.exists() and not args.out.is_file():
        raise InputError(f"argument --out: {args.out} is there and is no file; give another name")
    prompt = prompt_ids(args.prompt)
    paths = [args.checkpoint, args.compare] if args.compare else [args.checkpoint]
    models = [MiniMoE.from_pretrained(path) for path in paths]
    config = models[0].config
    if models[-1].config != config:
        raise InputError(f"{args.compare} has other sizes than {args.checkpoint}; compare checkpoints of one model")
    completions = [generate(model, prompt, args.max_new_tokens)[0] for model in models]
    tokens = prompt + completions[0]
    seen = [inspect(model, tokens) for model in models]
    write_text(Path(os.path.realpath(args.out)), page({
        "tokens": tokens, "prompt": len(prompt), "names": [name(token) for token in range(config.vocabulary)],
        "config": config.to_dict(), "attention": seen[0]["attention"], "streams": seen[0]["streams"],
        "models": [
            {
                "checkpoint": str(path), "completion": completion_text(ids),
                "next": one["next"], "experts": one["experts"],
            }
            for path, ids, one in zip(paths, completions, seen, strict=True)
        ],
    }))
    print(f"{args.out}: {len(prompt)} tokens of the prompt, {len(completions[0])} of the completion, "
          f"{args.out.stat().st_size / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    run(main)
