"""Published traces of real traffic. Both give lengths and times, none gives text.

Azure's (github.com/Azure/AzurePublicDataset, "LLM inference trace"): CSV with TIMESTAMP, ContextTokens and
GeneratedTokens.
Mooncake's (github.com/kvcache-ai/Mooncake): a JSON object a line with timestamp (ms), input_length, output_length and
hash_ids, one for each 512 tokens of the prompt, equal where the tokens and all before them are.
"""

from __future__ import annotations

import csv
import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from cudaprefill.tune.workload import Arrival, Workload

MOONCAKE_BLOCK = 512
_AZURE_COLUMNS = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}


def read_azure(path: Path) -> Workload:
    """Raises ValueError naming the file and the line that is wrong."""
    rows = []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if missing := _AZURE_COLUMNS - set(reader.fieldnames or ()):
            raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))}")
        for row in reader:
            try:
                rows.append((_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"])))
            except ValueError as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    return _workload(path, [(time, prompt, output, []) for time, prompt, output in rows])


def read_mooncake(path: Path) -> Workload:
    """Raises ValueError naming the file and the line that is wrong."""
    rows = []
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                rows.append(_mooncake_row(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is not a request: {error!r}") from None
    return _workload(path, rows)


def _mooncake_row(row: dict[str, Any]) -> tuple[float, int, int, list[int]]:
    time, prompt, output = row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"])
    hash_ids = [int(value) for value in row.get("hash_ids", ())]
    # The last one may stand for a block that is not full: it tells nothing of the tokens that would follow.
    return time, prompt, output, hash_ids[: prompt // MOONCAKE_BLOCK]


def _workload(path: Path, rows: list[tuple[float, int, int, list[int]]]) -> Workload:
    """Requests without a prompt or an output are nothing to replay."""
    rows = sorted((row for row in rows if row[1] > 0 and row[2] > 0), key=lambda row: row[0])
    arrivals = [
        Arrival(
            id=f"{path.name}-{index}",
            time=time - rows[0][0],
            num_prompt_tokens=prompt,
            num_output_tokens=(output,),
            prefix=np.array(hash_ids, dtype=np.uint64),
            prefix_block=MOONCAKE_BLOCK,
        )
        for index, (time, prompt, output, hash_ids) in enumerate(rows)
    ]
    return Workload(arrivals, path.name)


def _seconds(text: str) -> float:
    """Since 1970, of 2023-11-16 18:15:46.6805900 with any number of decimals, maybe +00:00."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:Z|\+00:00)?", text.strip())
    if match is None:
        raise ValueError(f"TIMESTAMP must be like 2023-11-16 18:15:46.68, got {text!r}")
    whole = datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc)
    return whole.timestamp() + float(match[2] or 0)
