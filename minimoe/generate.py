r'''Continue prompts with a trained model.

    python -m minimoe.generate 'def double_1a2b(x):\n    """Double x."""\n'

In a prompt, \n stands for a new line. The model is the one that minimoe.rloo trained here, else the released one.
'''

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from minimoe.cli import Parser, non_negative_float, non_negative_int, positive_int, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.errors import InputError
from minimoe.files import first_there
from minimoe.layers.layer import State
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, completion_text, encode

DEFAULTS = "checkpoints/rloo/last", "checkpoints/released/rloo"


def generate(
    model: MiniMoE,
    prompts: Sequence[Any],
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    seed: int | Sequence[int] = 0,
) -> list[list[int]]:
    """Continue each prompt until EOS, `max_new_tokens` or the end of the context, and return the new ids alone.

    One prompt (a list of ids) gives a list of one. An EOS that was produced is the last id. Ids are drawn from
    softmax(logits / temperature); temperature 0 takes the largest. Prompts may differ in length. Raises `InputError` for
    a prompt that is empty, longer than the context or has an id that the model has not, and for a negative temperature.
    """
    prompts = [prompts] if len(prompts) and np.ndim(prompts[0]) == 0 else prompts
    context, V = model.config.context, model.config.vocabulary
    for prompt in prompts:
        if not 1 <= len(prompt) <= context:
            raise InputError(f"a prompt has {len(prompt)} tokens; it needs 1 to {context}, the model's context")
        if not 0 <= min(prompt) <= max(prompt) < V:
            raise InputError(f"a prompt has an id outside 0 to {V - 1}")
    if not temperature >= 0:
        raise InputError(f"temperature is {temperature}; it must be 0 or more")
    rng = np.random.default_rng(seed)
    completions: list[list[int]] = [[] for _ in prompts]
    room = [min(max_new_tokens, context - len(prompt)) for prompt in prompts]
    running = [i for i, left in enumerate(room) if left > 0]              # the prompts still being continued
    if running:
        logits, state, row = read(model, [prompts[i] for i in running])   # (R,V); row: which of the R rows each continues
    while running:
        ids = sample(logits[row], temperature, rng)                       # an id for each of `running`
        for i, token in zip(running, ids.tolist()):
            completions[i].append(token)
        going = [r for r, i in enumerate(running) if completions[i][-1] != EOS and len(completions[i]) < room[i]]
        running = [running[r] for r in going]
        if running:
            ways, row = np.unique(row[going] * V + ids[going], return_inverse=True)
            before, ids = np.divmod(ways, V)                              # (R,) what went the same way so far is one row
            if not np.array_equal(before, np.arange(len(logits))):
                state = [part.take(before) for part in state]
            logits, state = model.step(ids[:, None], state)
            logits = logits[:, -1]
    return completions


def read(model: MiniMoE, prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, list[State], np.ndarray]:
    """Read the prompts, equal ones once; return the logits (R,V) after the last id, the state, and the row of each prompt.

    Prompts of one length are read together, and their states joined, each row with its own position: nothing is padded.
    """
    distinct = sorted(set(map(tuple, prompts)), key=len)
    logits, states = [], []
    for _, group in groupby(distinct, key=len):
        y, state = model.step(np.array(list(group)))
        logits.append(y[:, -1])
        states.append(state)
    row = {prompt: r for r, prompt in enumerate(distinct)}
    state = [type(parts[0]).join(parts) for parts in zip(*states)]
    return np.concatenate(logits), state, np.array([row[tuple(prompt)] for prompt in prompts])


def sample(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """Draw an id for each row of logits (R,V) from softmax(logits / temperature); temperature 0 takes the largest."""
    if temperature == 0:
        return logits.argmax(axis=-1)
    logits = logits - logits.max(axis=-1, keepdims=True).astype(np.float64)    # <= 0, so that ...
    with np.errstate(over="ignore"):                                      # ... a temperature near 0 gives 0 and -inf
        logits = logits / temperature
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=-1)    # Gumbel noise makes argmax a draw


def prompt_ids(text: str) -> list[int]:
    """Return the ids of a prompt as it is typed, where \\n stands for a new line. Raises `InputError` if there is none."""
    if not text:
        raise InputError("a prompt is empty; give some text to continue")
    return [BOS] + encode(text.replace("\\n", "\n"))


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--checkpoint", metavar="FOLDER", help=f"the model (default: the first of {' and '.join(DEFAULTS)})")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="the text to continue")
    parser.add_argument("--max-new-tokens", type=positive_int, default=32, help="most tokens to add to a prompt")
    parser.add_argument("--temperature", type=non_negative_float, default=0.0, help="0 takes the likeliest token each time")
    parser.add_argument("--seed", type=non_negative_int, default=0, help="of the draws, when the temperature is above 0")
    args = parser.parse_args()
    prompts = [prompt_ids(prompt) for prompt in args.prompts]
    checkpoint = first_there(DEFAULTS) if args.checkpoint is None else args.checkpoint
    if args.checkpoint is None and not os.path.exists(checkpoint):
        raise InputError(f"there is no {' and no '.join(DEFAULTS)} here; go into a clone of the repository, or give --checkpoint")
    model = MiniMoE.from_pretrained(checkpoint)
    completions = generate(model, prompts, args.max_new_tokens, args.temperature, args.seed)
    for prompt, completion in zip(prompts, completions):
        print(completion_text(prompt + completion))


if __name__ == "__main__":
    run(main)
