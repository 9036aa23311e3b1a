"""The README's first code block does what it promises; that all blocks run is test_documentation's business."""

from __future__ import annotations

import re
from pathlib import Path

import cv2

README = Path(__file__).parents[1] / "README.md"


def test_first_code_block_does_the_whole_job(photo, tmp_path, monkeypatch, capsys):
    cv2.imwrite(str(tmp_path / "a.jpg"), photo[:320, :320])
    cv2.imwrite(str(tmp_path / "b.jpg"), cv2.rotate(photo[40:360, 30:350], cv2.ROTATE_90_CLOCKWISE))
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    exec(compile(block, "README.md", "exec"), {})
    agreeing, total = map(int, re.search(r"(\d+) of (\d+) matches agree", capsys.readouterr().out).groups())
    assert 100 < 0.9 * total < agreeing
