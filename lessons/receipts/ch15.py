"""Make lessons/receipts/ch15.json from the logs of seven runs of checkpoints/reproduce.sh: what became of each group of `even`.

    bash checkpoints/reproduce.sh
    python -m lessons.receipts.ch15                          from checkpoints/runs
    python -m lessons.receipts.ch15 FOLDER                   from another folder of these runs
"""

import json
import sys
from pathlib import Path
from typing import Any

RUNS = "both-0-2", *(f"{recipe}-1-{seed}" for recipe in ("rl", "both") for seed in range(3))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def groups(run: Path) -> list[list[Any]]:
    """Return of each group of `even`: its step, how many samples passed, failed and were invalid, and the commonest that did not pass."""
    rollouts, result = lines(run / "rollouts.jsonl"), []
    for step in sorted({line["step"] for line in rollouts if line["task"].startswith("even_")}):
        group = [line for line in rollouts if line["step"] == step]
        counts = [sum(line["count"] for line in group if line["status"] == status) for status in ("passed", "failed", "invalid")]
        wrong = max((line for line in group if line["status"] != "passed"), key=lambda line: line["count"], default={"completion": ""})
        result.append([step, *counts, wrong["completion"].strip().removeprefix("return ")])
    return result


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints/runs")
    dev = {record["step"]: record["dev"]["even"] for record in lines(folder / "both-0-2" / "metrics.jsonl") if "dev" in record}
    receipt = {"command": "bash checkpoints/reproduce.sh", "dev": dev, "even": {name: groups(folder / name) for name in RUNS}}
    text = json.dumps(receipt).replace("[[", "[\n[").replace("]], ", "]],\n").replace("], [", "],\n[")
    Path(__file__).with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
