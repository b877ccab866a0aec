"""Make lessons/receipts/ch14.json from the metrics of a run of RLOO: of each group its distinct samples, mean reward, and whether it has no spread.

    python -m minimoe.rloo --base checkpoints/released/pretrain-0085
    python -m lessons.receipts.ch14                          from checkpoints/rloo/metrics.jsonl
    python -m lessons.receipts.ch14 PATH/metrics.jsonl       from another run's
"""

import json
import sys
from pathlib import Path


def main() -> None:
    metrics = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints/rloo/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    receipt = {
        "command": "python -m minimoe.rloo --base checkpoints/released/pretrain-0085",
        "distinct": [record["distinct"] for record in records],
        "reward": [round(record["reward"], 4) for record in records],
        "zero_spread": [record["zero_spread"] for record in records],
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(receipt) + "\n")


if __name__ == "__main__":
    main()
